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
constexpr std::size_t kMaxReadsPerReader = 8192;

struct SumTask {
  kv::BlockId block = 0;
  std::size_t index = 0;  ///< in the prompt
  std::uint32_t generation = 0;
  TokenRange tokens;
  std::vector<std::uint32_t> sums;

  Sums take() { return std::make_shared<const std::vector<std::uint32_t>>(std::move(sums)); }
};

std::size_t slice_blocks(const kv::Layout& layout) {
  const std::size_t block = layout.block_bytes() * static_cast<std::size_t>(layout.num_layers);
  return std::max<std::size_t>(1, kSumSliceBytes / block);
}

/// Sums tasks[slice * width ...] in place.
void run_slice(const kv::CacheMemory& memory, std::vector<SumTask>& tasks, std::size_t slice, std::size_t width) {
  const std::size_t end = std::min(tasks.size(), (slice + 1) * width);
  for (std::size_t i = slice * width; i < end; ++i) {
    SumTask& task = tasks[i];
    task.sums.resize(pieces_per_block(memory.layout()));
    piece_checksums(memory.layout(), memory.data(), {&task.block, 1}, static_cast<std::int64_t>(task.index),
                    task.tokens, task.sums);
  }
}

std::int32_t length(TokenRange range) { return static_cast<std::int32_t>(range.end - range.first); }

}  // namespace

void Owner::sum_lease(std::uint64_t id) {
  Lease& lease = leases_.at(id);
  const kv::Layout& layout = context_.memory.layout();
  auto tasks = std::make_shared<std::vector<SumTask>>();
  lease.sums.resize(lease.blocks.size());
  for (std::size_t i = 0; i < lease.blocks.size(); ++i) {
    const kv::BlockId block = lease.blocks[i];
    lease.generations.push_back(sums_.generation(block));
    const TokenRange tokens = clip_to_block(i, layout.block_size, {0, lease.num_tokens});
    if (tokens.end <= tokens.first) continue;
    lease.sums[i] = sums_.find(block, lease.generations[i], length(tokens));
    if (!lease.sums[i]) tasks->push_back({block, i, lease.generations[i], tokens, {}});
  }
  if (tasks->empty()) {
    lease.summed = true;
    return;
  }
  ++lease.pins;
  const std::size_t width = slice_blocks(layout);
  lease.summing = SlicedJob::start(
      context_.loop, context_.pool, (tasks->size() + width - 1) / width,
      [memory = &context_.memory, tasks, width](std::size_t slice) { run_slice(*memory, *tasks, slice, width); },
      [this, id, tasks] {
        Lease& summed = leases_.at(id);
        if (!summed.summing->cancelled()) {
          for (SumTask& task : *tasks) {
            summed.sums[task.index] = task.take();
            sums_.put(task.block, task.generation, length(task.tokens), summed.sums[task.index]);
          }
          summed.summed = true;
        }
        summed.summing.reset();
        const std::vector<Token> waiting(summed.reads.begin(), summed.reads.end());
        for (const Token token : waiting) try_grant(token);
        unpin(id);
      });
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
  const std::int64_t num_tokens = leases_.at(message.lease.id).num_tokens;
  if (message.end_token > num_tokens) {
    return Status(Code::kInvalidArgument,
                  fmt::format("tokens up to {} asked for, the lease has {}", message.end_token, num_tokens),
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
  read.range = {message.first_token, message.end_token};
  peer.reads[message.fetch] = token;
  leases_.at(read.lease).reads.insert(token);
  sum_partial(token);
  try_grant(token);
}

/// Blocks of which the range takes only a part have no checksums from the lease: they are summed for this read.
void Owner::sum_partial(Token token) {
  Read& read = reads_.at(token);
  const Lease& lease = leases_.at(read.lease);
  const std::int32_t size = context_.memory.layout().block_size;
  auto tasks = std::make_shared<std::vector<SumTask>>();
  const auto first = static_cast<std::size_t>(read.range.first / size);
  const auto last = static_cast<std::size_t>((read.range.end - 1) / size);
  for (const std::size_t index : {first, last}) {
    const TokenRange whole = clip_to_block(index, size, {0, lease.num_tokens});
    const TokenRange part = clip_to_block(index, size, read.range);
    if ((part.first == whole.first && part.end == whole.end) || read.partial.contains(index)) continue;
    read.partial[index];
    tasks->push_back({lease.blocks[index], index, 0, part, {}});
  }
  if (tasks->empty()) return;
  ++read.jobs;
  ++leases_.at(read.lease).pins;
  SlicedJob::start(
      context_.loop, context_.pool, tasks->size(),
      [memory = &context_.memory, tasks](std::size_t slice) { run_slice(*memory, *tasks, slice, 1); },
      [this, token, id = read.lease, tasks] {
        const auto found = reads_.find(token);
        if (found != reads_.end()) {
          --found->second.jobs;
          for (SumTask& task : *tasks) found->second.partial[task.index] = task.take();
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
  if (read.granted || read.jobs > 0 || !lease.summed || lease.ended) return;
  const kv::Layout& layout = context_.memory.layout();
  const auto first = static_cast<std::size_t>(read.range.first / layout.block_size);
  const auto end = static_cast<std::size_t>((read.range.end - 1) / layout.block_size) + 1;
  Peer& peer = peers_.at(read.control);
  read.granted = true;
  peer.connection->send(wire::Grant{read.fetch, token, static_cast<std::uint32_t>(end - first),
                                    static_cast<std::uint32_t>(pieces_per_block(layout))});
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
    const std::int32_t size = context_.memory.layout().block_size;
    const std::int64_t position = (read.range.first / size + static_cast<std::int64_t>(read.next_block)) * size;
    if (position >= read.range.end) peer.granting.erase(peer.granting.begin());
  }
}

wire::GrantBlocks Owner::next_grant_blocks(Read& read, const Lease& lease) const {
  const kv::Layout& layout = context_.memory.layout();
  const auto base = static_cast<std::size_t>(read.range.first / layout.block_size);
  const auto end = static_cast<std::size_t>((read.range.end - 1) / layout.block_size) + 1;
  const std::size_t entry = sizeof(wire::GrantedBlock) + pieces_per_block(layout) * sizeof(std::uint32_t);
  const std::size_t count = std::min(std::max<std::size_t>(1, kGrantBytes / entry), end - base - read.next_block);
  wire::GrantBlocks message;
  message.fetch = read.fetch;
  message.first = static_cast<std::uint32_t>(read.next_block);
  for (std::size_t i = 0; i < count; ++i, ++read.next_block) {
    const std::size_t index = base + read.next_block;
    const auto partial = read.partial.find(index);
    const Sums& sums = partial != read.partial.end() ? partial->second : lease.sums[index];
    message.blocks.push_back({lease.blocks[index], lease.generations[index]});
    message.checksums.insert(message.checksums.end(), sums->begin(), sums->end());
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
    // The sender sends nothing more. The reader closes the connection once it knows why; if it does not, we do.
    context_.loop.after(context_.options.connect_timeout, [this, id = read.data] { drop_connection(id); });
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
  if (found->second.data != 0) drop_connection(std::exchange(found->second.data, 0));
  found->second.data = id;
  peer.token = message.token;
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
    const Status checked = check_run(context_.memory.layout(), run, lease.members);
    if (!checked.ok()) return refuse(id, checked);
  }
  const Status queued = peer.sender->enqueue(message);
  if (!queued.ok()) refuse(id, queued);
}

}  // namespace tandem::transfer
