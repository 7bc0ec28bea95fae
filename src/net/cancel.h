// SPDX-License-Identifier: Apache-2.0
// "Stop what you are doing": one side calls cancel(), operations in flight end at once with kCancelled. Copies share
// their state. Used on one executor only; no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace tandem::net {

class Cancel {
  struct State {
    bool cancelled = false;
    std::uint64_t next = 0;
    std::map<std::uint64_t, std::function<void()>> callbacks;
  };

 public:
  /// While it lives, its callback is called once if cancel() happens.
  class Hook {
   public:
    Hook() {}
    Hook(std::weak_ptr<State> state, std::uint64_t id) : state_(std::move(state)), id_(id) {}
    Hook(Hook&& other) noexcept : state_(std::move(other.state_)), id_(other.id_) { other.state_.reset(); }
    Hook& operator=(Hook&& other) noexcept {
      if (this != &other) {
        release();
        state_ = std::move(other.state_);
        id_ = other.id_;
        other.state_.reset();
      }
      return *this;
    }
    ~Hook() { release(); }
    void release() {
      if (const auto state = state_.lock()) state->callbacks.erase(id_);
      state_.reset();
    }

   private:
    std::weak_ptr<State> state_;
    std::uint64_t id_ = 0;
  };

  Cancel() : state_(std::make_shared<State>()) {}

  bool cancelled() const { return state_->cancelled; }

  void cancel() {
    if (state_->cancelled) return;
    const auto keep = state_;  // a callback may destroy this object
    keep->cancelled = true;
    while (!keep->callbacks.empty()) {
      const auto callback = std::move(keep->callbacks.begin()->second);
      keep->callbacks.erase(keep->callbacks.begin());
      callback();
    }
  }

  /// Called right away if it is cancelled already.
  [[nodiscard]] Hook on_cancel(std::function<void()> callback) const {
    if (state_->cancelled) {
      callback();
      return {};
    }
    const std::uint64_t id = state_->next++;
    state_->callbacks.emplace(id, std::move(callback));
    return {state_, id};
  }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tandem::net
