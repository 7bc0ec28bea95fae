// SPDX-License-Identifier: Apache-2.0
#include "transfer/offers.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace tandem::transfer {
namespace {

constexpr std::size_t kMaxCalls = 4096;

}  // namespace

void Offers::make(const Delivery& to, const Handover& source, std::function<void(Status)> told) {
  const CallId id = next_++;
  if (calls_.size() >= kMaxCalls) {
    context_.loop.post([told = std::move(told)] {
      told(Status(Code::kResourceExhausted, fmt::format("more than {} offers at a time", kMaxCalls), Scope::kTransfer));
    });
    return;
  }
  Call& call = calls_[id];
  call.name = fmt::format("decoder '{}' at {}", to.engine_id, endpoint_name(to.host, to.port));
  call.told = std::move(told);
  call.deadline = context_.loop.after(context_.options.connect_timeout, [this, id] {
    end(id, Status(Code::kUnavailable,
                   fmt::format("{} did not answer an offer within {} ms; is it running, and is its KV port reachable?",
                               calls_.at(id).name, context_.options.connect_timeout.count()),
                   Scope::kPeer));
  });
  wire::Offer offer{to.incarnation, to.reception, context_.identity, source};
  call.dialer = Dialer::start(
      context_.loop, context_.blocking, to.host, to.port, [this, id, offer = std::move(offer)](Result<Socket> socket) {
        if (socket) return on_connected(id, std::move(*socket), offer);
        end(id, Status(Code::kUnavailable,
                       fmt::format("cannot reach {}: {}; is it running?", calls_.at(id).name, socket.error().message()),
                       Scope::kPeer));
      });
}

void Offers::on_connected(CallId id, Socket socket, const wire::Offer& offer) {
  Call& call = calls_.at(id);
  tune(socket, context_.options.connect_timeout);
  Channel channel(std::move(socket), context_.options.tls, Channel::Side::kClient);
  call.connection = std::make_shared<Connection>(context_.loop, std::move(channel), call.name);
  call.connection->start([this, id](const wire::Message& message) { on_message(id, message); },
                         [this, id](const Status& why) { end(id, as_unreachable(why)); });
  call.connection->send(offer);
}

void Offers::on_message(CallId id, const wire::Message& message) {
  const std::string& name = calls_.at(id).name;
  if (const auto* reply = std::get_if<wire::OfferReply>(&message)) {
    if (reply->code == Code::kOk) return end(id, {});
    return end(id,
               Status(reply->code, fmt::format("{} refused the offer: {}", name, reply->message), Scope::kTransfer));
  }
  if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    return end(id, Status(refused->code, fmt::format("{} refused us: {}", name, refused->message), Scope::kPeer));
  }
  end(id, Status(Code::kInvalidArgument, fmt::format("{} sent an unexpected message", name), Scope::kPeer));
}

void Offers::end(CallId id, Status status) {
  const auto found = calls_.find(id);
  if (found == calls_.end()) return;
  const Call call = std::move(found->second);
  calls_.erase(found);
  context_.loop.cancel(call.deadline);
  if (call.connection) call.connection->close();
  call.told(std::move(status));
}

void Offers::stop() {
  std::vector<CallId> all;
  for (const auto& [id, call] : calls_) all.push_back(id);
  for (const CallId id : all) end(id, Status(Code::kCancelled, "the transfer engine is stopping", Scope::kTransfer));
}

}  // namespace tandem::transfer
