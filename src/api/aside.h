// SPDX-License-Identifier: Apache-2.0
// Long pieces of work (parsing and tokenising large bodies) beside the server's thread, which must go on answering.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "api/context.h"
#include "api/refusal.h"

namespace tandem::api {

/// Bodies below this are handled at once: they take less than some ten milliseconds.
constexpr std::size_t kLargeBodyBytes = 64U << 10;

/// `work` on the context's helper thread, one piece after the other; the result comes back on `executor`. `work` may
/// use the context (which waits for its helper) and what it owns, nothing of the caller, who may be gone by then.
template <class T>
net::Task<std::shared_ptr<Outcome<T>>> run_aside(std::shared_ptr<Context> context,
                                                 boost::asio::any_io_executor executor,
                                                 std::function<Outcome<T>()> work) {
  namespace asio = boost::asio;
  struct State {
    explicit State(const asio::any_io_executor& e) : done(e) {}
    asio::steady_timer done;  ///< cancelled when the result is there
    std::shared_ptr<Outcome<T>> result;
  };
  auto state = std::make_shared<State>(executor);
  std::weak_ptr<State> weak = state;
  asio::post(context->helper(), [weak, executor, work = std::move(work)] {
    std::shared_ptr<Outcome<T>> result;
    try {
      result = std::make_shared<Outcome<T>>(work());
    } catch (const std::exception& error) {
      result = std::make_shared<Outcome<T>>(Refusal(500, "InternalServerError", error.what()));
    }
    asio::post(executor, [weak, result] {
      if (const auto live = weak.lock()) {
        live->result = result;
        live->done.cancel();
      }
    });
  });
  while (!state->result) {
    state->done.expires_after(std::chrono::seconds(1));
    co_await state->done.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  co_return state->result;
}

}  // namespace tandem::api
