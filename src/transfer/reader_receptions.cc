// SPDX-License-Identifier: Apache-2.0
// What receptions have beyond fetches: they wait for an offer, and what they may read grows by Progress messages.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transfer/reader.h"

namespace tandem::transfer {

void Reader::receive(FetchId id, std::uint64_t name, Reception reception, FetchDone done) {
  Active& active = add(id, std::move(done));
  active.awaited = Awaited{name, reception.num_tokens, reception.prompt_hash, std::move(reception.offered)};
  active.destination = std::move(reception.destination);
  active.first_token = reception.first_token;
  active.end_token = reception.end_token;
  receptions_[name] = id;
  Status checked = check_extent(active, reception.num_tokens);
  if (!checked.ok()) return finish(id, std::move(checked));
  active.deadline = context_.loop.after(context_.options.offer_timeout, [this, id] {
    fail(id, Status(Code::kDeadlineExceeded,
                    fmt::format("no prefiller offered the KV within {} ms", context_.options.offer_timeout.count()),
                    Scope::kTransfer));
  });
}

Status Reader::on_offer(const wire::Offer& offer) {
  const auto refused = [](Code code, std::string why) { return Status(code, std::move(why), Scope::kTransfer); };
  if (offer.incarnation != context_.identity.incarnation) {
    return refused(Code::kUnavailable,
                   fmt::format("the offer is for incarnation {:x} of decoder '{}', which is now {:x}: it was restarted",
                               offer.incarnation, context_.identity.engine_id, context_.identity.incarnation));
  }
  const auto found = receptions_.find(offer.reception);
  if (found == receptions_.end() || !find(found->second)->failure.ok()) {
    return refused(Code::kNotFound, fmt::format("decoder '{}' does not wait for reception {:x} any more",
                                                context_.identity.engine_id, offer.reception));
  }
  Active& active = *find(found->second);
  const Handover& source = offer.source;
  if (active.link) {
    if (active.source.lease == source.lease) return {};  // said twice
    return refused(Code::kAlreadyExists, fmt::format("reception {:x} takes its KV from '{}' already", offer.reception,
                                                     active.source.engine_id));
  }
  Status compatible = check_compatible(context_.identity, offer.owner);
  if (!compatible.ok()) return compatible;
  if (source.num_tokens != active.awaited->num_tokens || source.prompt_hash != active.awaited->prompt_hash) {
    return refused(
        Code::kFailedPrecondition,
        fmt::format("'{}' offers the KV of {} tokens with hash {:016x}, '{}' waits for {} with hash {:016x}; "
                    "both instances must see the same prompt (model, tokenizer, chat template)",
                    source.engine_id, source.num_tokens, source.prompt_hash, context_.identity.engine_id,
                    active.awaited->num_tokens, active.awaited->prompt_hash));
  }
  context_.loop.cancel(active.deadline);
  if (active.awaited->offered) active.awaited->offered();
  active.source = source;
  active.started = active.last_progress = context_.loop.now();
  active.link = link_to(source);
  active.link->begin_fetch(source.lease.id);
  // Its answer tells how far the prompt is, also if the lease was held here before.
  active.link->send(wire::Hold{source.lease});
  begin(active);
  // After the answer is on its way: this may already be the end.
  context_.loop.post([this, id = active.id] { move_on(id); });
  return {};
}

void Reader::on_progress(OwnerLink& link, const wire::Progress& progress) {
  for (const FetchId id : of_link(link)) {
    Active* active = find(id);
    if (active == nullptr || !(active->source.lease == progress.lease)) continue;
    if (progress.end_layer > std::ssize(active->published) || progress.end_token > active->source.num_tokens) {
      fail(id, Status(Code::kDataLoss,
                      fmt::format("the prefiller published layers up to {} and tokens up to {}; there are {} and {}",
                                  progress.end_layer, progress.end_token, active->published.size(),
                                  active->source.num_tokens),
                      Scope::kTransfer));
      continue;
    }
    active->last_progress = context_.loop.now();
    active->retried = false;
    for (std::int32_t layer = progress.first_layer; layer < progress.end_layer; ++layer) {
      std::int64_t& published = active->published[static_cast<std::size_t>(layer)];
      published = std::max(published, progress.end_token);
    }
    move_on(id);
  }
}

}  // namespace tandem::transfer
