// SPDX-License-Identifier: Apache-2.0
// Reads of the owner's side: checksums first, then the grant with them, then (over TCP) the bytes.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "transfer/owner.h"

namespace tandem::transfer {
namespace {

constexpr std::size_t kSumSliceBytes = std::size_t{2} << 20;
constexpr std::size_t kGrantBytes = std::size_t{256} << 10;  // of one GrantBlocks, about
constexpr std::size_t kGrantBuffer = std::size_t{1} << 20;   // not more waits in a connection
constexpr std::size_t kMaxReadsPerReader = 8 * TransferEngine::kMaxFetches;

struct SumTask {
  kv::BlockId block = 0;
  std::int64_t index = 0;        ///< in the prompt
  Extent extent;                 ///< of that block
  Sums sums;                     ///< kept alive,
  std::span<std::uint32_t> out;  ///< and the part of it to fill
};
using SumTasks = std::vector<SumTask>;

std::shared_ptr<SlicedJob> start_summing(Context& context, std::shared_ptr<SumTasks> tasks,
                                         std::function<void()> done) {
  std::size_t layers = 1;
  for (const SumTask& task : *tasks) layers = std::max(layers, static_cast<std::size_t>(task.extent.num_layers()));
  const std::size_t width = std::max<std::size_t>(1, kSumSliceBytes / (context.shards.block_bytes() * layers));
  const std::size_t slices = (tasks->size() + width - 1) / width;
  return SlicedJob::start(
      context.loop, context.pool, slices,
      [&context, tasks = std::move(tasks), width](std::size_t slice) {
        const std::size_t end = std::min(tasks->size(), (slice + 1) * width);
        for (std::size_t i = slice * width; i < end; ++i) {
          const SumTask& task = (*tasks)[i];
          piece_checksums({context.shards, context.memory.data(), {&task.block, 1}, task.index}, task.extent, task.out);
        }
      },
      std::move(done));
}

}  // namespace

/// Of the first `tokens` of the prompt, those in blocks that have all tokens that they will ever have.
std::int64_t Owner::whole_blocks(const Lease& lease, std::int64_t tokens) const {
  const std::int64_t size = context_.memory.layout().block_size;
  return tokens == lease.num_tokens ? tokens : tokens / size * size;
}

void Owner::sum_published(std::uint64_t id) {
  Lease& lease = leases_.at(id);
  if (lease.summing || lease.ended) return;
  const kv::Layout& layout = context_.memory.layout();
  const std::size_t per_layer = pieces_per_block(1, context_.shards.num_heads());
  auto tasks = std::make_shared<SumTasks>();
  std::vector<std::int64_t> targets;
  for (const std::int64_t tokens : lease.published) targets.push_back(whole_blocks(lease, tokens));
  if (targets == lease.summed) return;
  for (std::int32_t first = 0; first < layout.num_layers;) {
    // Layers that are equally far go together.
    const auto at = static_cast<std::size_t>(first);
    std::int32_t end = first + 1;
    while (end < layout.num_layers && targets[static_cast<std::size_t>(end)] == targets[at] &&
           lease.summed[static_cast<std::size_t>(end)] == lease.summed[at]) {
      ++end;
    }
    const BlockSpan span = blocks_of({first, end, lease.summed[at], targets[at]}, layout.block_size);
    for (std::int64_t index = span.first; index < span.first + span.count; ++index) {
      const auto i = static_cast<std::size_t>(index);
      const Extent extent = clip_to_block(index, layout.block_size, {first, end, 0, lease.num_tokens});
      Sums& sums = lease.sums[i];
      if (!sums) {
        sums = sums_.find(lease.blocks[i], lease.generations[i], static_cast<std::int32_t>(extent.num_tokens()));
        lease.known[i] = sums != nullptr;
      }
      if (lease.known[i]) continue;
      if (!sums) sums = std::make_shared<std::vector<std::uint32_t>>(per_layer * lease.published.size());
      tasks->push_back({lease.blocks[i], index, extent, sums,
                        std::span(*sums).subspan(at * per_layer, static_cast<std::size_t>(end - first) * per_layer)});
    }
    first = end;
  }
  if (tasks->empty()) return on_summed(id, targets);
  ++lease.pins;
  lease.summing = start_summing(context_, tasks, [this, id, targets] {
    Lease& summed = leases_.at(id);
    const bool cancelled = summed.summing->cancelled();
    summed.summing.reset();
    if (!cancelled) on_summed(id, targets);
    unpin(id);
  });
}

void Owner::on_summed(std::uint64_t id, const std::vector<std::int64_t>& targets) {
  Lease& lease = leases_.at(id);
  lease.summed = targets;
  const std::int64_t in_all_layers = *std::min_element(targets.begin(), targets.end());
  const std::int32_t size = context_.memory.layout().block_size;
  for (; lease.complete < lease.blocks.size(); ++lease.complete) {
    const Extent whole = clip_to_block(static_cast<std::int64_t>(lease.complete), size, {0, 0, 0, lease.num_tokens});
    if (whole.num_tokens() <= 0 || whole.end_token > in_all_layers) break;
    sums_.put(lease.blocks[lease.complete], lease.generations[lease.complete],
              static_cast<std::int32_t>(whole.num_tokens()), lease.sums[lease.complete]);
  }
  const std::vector<Token> waiting(lease.reads.begin(), lease.reads.end());
  for (const Token token : waiting) try_grant(token);
  sum_published(id);
}

Status Owner::check_request(const Peer& peer, const wire::FetchRequest& message) const {
  if (!peer.compatible.ok()) return peer.compatible;
  if (message.lease.incarnation != context_.identity.incarnation) {
    return Status(Code::kUnavailable,
                  fmt::format("hand-over is of incarnation {:x} of '{}', which is now {:x}: it was restarted",
                              message.lease.incarnation, context_.identity.engine_id, context_.identity.incarnation),
                  Scope::kTransfer);
  }
  if (!table_.alive(message.lease.id)) {
    const std::optional<LeaseEnd> end = table_.ended_as(message.lease.id);
    return Status(Code::kUnavailable,
                  fmt::format("lease {:x} at '{}' {}", message.lease.id, context_.identity.engine_id,
                              end ? fmt::format("has ended: {}", lease_end_name(*end)) : "is unknown"),
                  Scope::kTransfer);
  }
  const std::vector<std::int64_t>& published = leases_.at(message.lease.id).published;
  const Extent& extent = message.extent;
  if (extent.end_layer > std::ssize(published)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("layers up to {} asked for, the model has {}", extent.end_layer, published.size()),
                  Scope::kTransfer);
  }
  // Later layers never have more tokens than earlier ones.
  const std::int64_t there = published[static_cast<std::size_t>(extent.end_layer) - 1];
  if (extent.end_token > there) {
    return Status(Code::kInvalidArgument,
                  fmt::format("tokens up to {} asked for, the lease has {}", extent.end_token, there),
                  Scope::kTransfer);
  }
  if (peer.reads.size() >= kMaxReadsPerReader || peer.reads.contains(message.fetch)) {
    return Status(Code::kResourceExhausted, fmt::format("too many fetches at a time, or fetch {} twice", message.fetch),
                  Scope::kTransfer);
  }
  return {};
}

void Owner::handle(ConnectionId id, Peer& peer, const wire::FetchRequest& message) {
  const Status checked = check_request(peer, message);
  if (!checked.ok()) {
    peer.connection->send(wire::FetchError{message.fetch, checked.code(), checked.message()});
    return;
  }
  renew_one(id, peer, message.lease);
  const Token token = random_id();
  Read& read = reads_[token];
  read.fetch = message.fetch;
  read.control = id;
  read.lease = message.lease.id;
  read.via = message.via;
  read.extent = message.extent;
  peer.reads[message.fetch] = token;
  leases_.at(read.lease).reads.insert(token);
  sum_partial(token);
  try_grant(token);
}

/// Blocks of which the extent takes only a part have no checksums from the lease: they are summed for this read.
void Owner::sum_partial(Token token) {
  Read& read = reads_.at(token);
  const Lease& lease = leases_.at(read.lease);
  const std::int32_t size = context_.memory.layout().block_size;
  auto tasks = std::make_shared<SumTasks>();
  for (const std::int64_t index : {read.extent.first_token / size, (read.extent.end_token - 1) / size}) {
    const Extent whole = clip_to_block(index, size, {0, 0, 0, lease.num_tokens});
    const Extent part = clip_to_block(index, size, read.extent);
    if (part.num_tokens() == whole.num_tokens() || read.partial.contains(index)) continue;
    auto sums =
        std::make_shared<std::vector<std::uint32_t>>(pieces_per_block(part.num_layers(), context_.shards.num_heads()));
    read.partial[index] = sums;
    tasks->push_back({lease.blocks[static_cast<std::size_t>(index)], index, part, sums, *sums});
  }
  if (tasks->empty()) return;
  ++read.jobs;
  ++leases_.at(read.lease).pins;
  start_summing(context_, tasks, [this, token, id = read.lease] {
    const auto found = reads_.find(token);
    if (found != reads_.end()) {
      --found->second.jobs;
      try_grant(token);
    }
    unpin(id);
  });
}

void Owner::try_grant(Token token) {
  const auto found = reads_.find(token);
  if (found == reads_.end()) return;
  Read& read = found->second;
  const Lease& lease = leases_.at(read.lease);
  if (read.granted || read.jobs > 0 || lease.ended) return;
  // The last of these layers is summed last.
  const std::int64_t summed = lease.summed[static_cast<std::size_t>(read.extent.end_layer) - 1];
  if (summed < whole_blocks(lease, read.extent.end_token)) return;
  Peer& peer = peers_.at(read.control);
  read.granted = true;
  const BlockSpan span = blocks_of(read.extent, context_.memory.layout().block_size);
  peer.connection->send(
      wire::Grant{read.fetch, token, static_cast<std::uint32_t>(span.count),
                  static_cast<std::uint32_t>(pieces_per_block(read.extent.num_layers(), context_.shards.num_heads()))});
  peer.granting.push_back(token);
  pump_grants(peer);
}

void Owner::pump_grants(Peer& peer) {
  while (!peer.granting.empty() && peer.connection->open() && peer.connection->unsent_bytes() < kGrantBuffer) {
    const auto found = reads_.find(peer.granting.front());
    if (found == reads_.end() || leases_.at(found->second.lease).ended) {
      peer.granting.erase(peer.granting.begin());
      continue;
    }
    Read& read = found->second;
    const Lease& lease = leases_.at(read.lease);
    peer.connection->send(next_grant_blocks(read, lease));
    const BlockSpan span = blocks_of(read.extent, context_.memory.layout().block_size);
    if (read.next_block == span.count) peer.granting.erase(peer.granting.begin());
  }
}

wire::GrantBlocks Owner::next_grant_blocks(Read& read, const Lease& lease) const {
  const BlockSpan span = blocks_of(read.extent, context_.memory.layout().block_size);
  const std::size_t per_layer = pieces_per_block(1, context_.shards.num_heads());
  const std::size_t first_sum = static_cast<std::size_t>(read.extent.first_layer) * per_layer;
  const std::size_t num_sums = static_cast<std::size_t>(read.extent.num_layers()) * per_layer;
  const std::size_t entry = sizeof(wire::GrantedBlock) + num_sums * sizeof(std::uint32_t);
  const auto room = static_cast<std::int64_t>(std::max<std::size_t>(1, kGrantBytes / entry));
  const std::int64_t end = std::min(span.count, read.next_block + room);
  wire::GrantBlocks message;
  message.fetch = read.fetch;
  message.first = static_cast<std::uint32_t>(read.next_block);
  for (; read.next_block < end; ++read.next_block) {
    const auto index = static_cast<std::size_t>(span.first + read.next_block);
    const auto partial = read.partial.find(span.first + read.next_block);
    const std::span<const std::uint32_t> sums = partial != read.partial.end()
                                                    ? std::span(*partial->second)
                                                    : std::span(*lease.sums[index]).subspan(first_sum, num_sums);
    message.blocks.push_back({lease.blocks[index], lease.generations[index]});
    message.checksums.insert(message.checksums.end(), sums.begin(), sums.end());
  }
  return message;
}

void Owner::handle(ConnectionId, Peer& peer, const wire::FetchEnded& message) {
  const auto found = peer.reads.find(message.fetch);
  if (found == peer.reads.end()) {
    context_.metrics.ignored_messages.add();
    return;
  }
  end_read(found->second, {});
}

void Owner::end_read(Token token, const Status& why) {
  const auto found = reads_.find(token);
  if (found == reads_.end()) return;
  const Read read = std::move(found->second);
  reads_.erase(found);
  const auto peer = peers_.find(read.control);
  if (peer != peers_.end()) {
    peer->second.reads.erase(read.fetch);
    if (!why.ok()) peer->second.connection->send(wire::FetchError{read.fetch, why.code(), why.message()});
  }
  if (read.data != 0) {
    // The sender sends nothing more for this read. The reader closes the connection or uses it again; if it does
    // neither, we close it.
    const auto data = peers_.find(read.data);
    const std::uint64_t served = data == peers_.end() ? 0 : data->second.attachments;
    context_.loop.after(context_.options.connect_timeout, [this, id = read.data, served] {
      const auto idle = peers_.find(id);
      if (idle != peers_.end() && idle->second.attachments == served) drop_connection(id);
    });
  }
  leases_.at(read.lease).reads.erase(token);
  if (read.leaving) unpin(read.lease);
}

void Owner::handle(ConnectionId id, Peer& peer, const wire::Attach& message) {
  const auto found = reads_.find(message.token);
  const bool ours = message.incarnation == context_.identity.incarnation;
  if (!ours || found == reads_.end() || !found->second.granted || found->second.via != wire::Via::kTcp) {
    return refuse(id, Status(Code::kUnavailable, ours ? "the grant of this data connection has ended"
                                                      : "data connection is for another incarnation"));
  }
  if (peer.sender && !peer.sender->idle()) {
    return refuse(id,
                  Status(Code::kInvalidArgument, "data connection is taken for another grant before it was served"));
  }
  const auto before = reads_.find(peer.token);
  if (before != reads_.end()) before->second.data = 0;
  if (found->second.data != 0) drop_connection(std::exchange(found->second.data, 0));
  found->second.data = id;
  peer.token = message.token;
  ++peer.attachments;
  peer.sender = std::make_unique<DataSender>(*peer.connection, context_.memory.data(), [this, token = message.token] {
    const auto read = reads_.find(token);
    return read != reads_.end() && table_.alive(read->second.lease);
  });
}

void Owner::handle(ConnectionId id, Peer& peer, const wire::Pull& message) {
  const auto read = reads_.find(peer.token);
  if (read == reads_.end()) return;  // it learns on its control connection that the lease has ended
  const Lease& lease = leases_.at(read->second.lease);
  for (const wire::Run& run : message.runs) {
    const Status checked = check_run(context_.shards.ranks(), run, lease.members);
    if (!checked.ok()) return refuse(id, checked);
  }
  const Status queued = peer.sender->enqueue(message);
  if (!queued.ok()) refuse(id, queued);
}

}  // namespace tandem::transfer
