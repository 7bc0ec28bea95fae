// SPDX-License-Identifier: Apache-2.0
// The owner's side (a prefiller): leases on our blocks, checksums of them, grants, and sending over data connections.
// Everything that connects to us comes here, so a decoder that waits for pushes has one too, without leases: it passes
// offers on. Loop thread only, except open_lease().
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/seldom.h"
#include "transfer/acceptor.h"
#include "transfer/block_sums.h"
#include "transfer/checksum.h"
#include "transfer/connection.h"
#include "transfer/context.h"
#include "transfer/data_sender.h"
#include "transfer/lease_table.h"
#include "transfer/sliced_job.h"

namespace tandem::transfer {

class Owner {
 public:
  Owner(Context& context, Socket listener, Socket memory_listener, std::string memory_name);
  ~Owner();
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  void start();
  /// Answers an offer (we are its decoder): ok, or why it is refused. Set before start(); without it all are refused.
  void on_offer(std::function<Status(const wire::Offer&)> callback) { on_offer_ = std::move(callback); }
  void on_lease_end(std::function<void(LeaseId, LeaseEnd)> callback) { on_lease_end_ = std::move(callback); }
  /// Any thread; the loop need not have seen the lease yet when a reader asks for it. A growing one has no blocks yet.
  std::uint64_t open_lease(std::vector<kv::BlockId> blocks, std::int64_t num_tokens, bool growing);
  /// Takes over what open_lease() left; the engine posts it to the loop.
  void absorb_opened();
  void extend(LeaseId lease, const std::vector<kv::BlockId>& blocks);
  void publish(LeaseId lease, std::int32_t first_layer, std::int32_t end_layer, std::int64_t end_token);
  void revoke(LeaseId lease);
  /// Ends all leases and closes all sockets; `stopped` is called when no pool thread reads our blocks any more.
  void stop(std::function<void()> stopped);

 private:
  using ConnectionId = std::uint64_t;
  using Token = std::uint64_t;

  struct Opened {
    std::uint64_t lease = 0;
    std::vector<kv::BlockId> blocks;
    std::int64_t num_tokens = 0;
    bool growing = false;
  };
  struct Lease {
    std::vector<kv::BlockId> blocks;
    std::unordered_set<kv::BlockId> members;
    std::int64_t num_tokens = 0;
    bool growing = false;
    std::vector<std::uint32_t> generations;  ///< of the blocks, when they came into the lease
    std::vector<Sums> sums;                  ///< of the blocks
    std::vector<bool> known;                 ///< blocks whose sums came from an earlier lease
    std::size_t complete = 0;                ///< blocks whose sums are there in all layers
    std::vector<std::int64_t> published;     ///< by layer: tokens whose KV is there
    std::vector<std::int64_t> summed;        ///< by layer: tokens in blocks that have their checksums
    std::shared_ptr<SlicedJob> summing;      ///< one at a time: what is published meanwhile goes into the next one
    int pins = 0;                            ///< pool jobs and mapped readers that may still read the blocks
    std::optional<LeaseEnd> ended;           ///< reported when pins reaches 0
    std::unordered_set<ConnectionId> holders;
    std::unordered_set<Token> reads;
  };
  /// One granted (or soon to be) attempt of a reader.
  struct Read {
    std::uint64_t fetch = 0;
    ConnectionId control = 0;
    std::uint64_t lease = 0;
    wire::Via via = wire::Via::kTcp;
    Extent extent;
    std::map<std::int64_t, Sums> partial;  ///< checksums of blocks that the extent cuts, in its layers
    int jobs = 0;
    bool granted = false;
    std::int64_t next_block = 0;  ///< of the extent: first one not sent in GrantBlocks yet
    ConnectionId data = 0;
    bool leaving = false;  ///< lease revoked; waits for the mapped reader to say that it stopped
  };
  struct Peer {
    std::shared_ptr<Connection> connection;
    std::optional<wire::Identity> identity;  ///< set by Hello
    Status compatible;
    std::unordered_map<std::uint64_t, Token> reads;  ///< by the reader's fetch id
    std::vector<Token> granting;                     ///< reads whose GrantBlocks are not all sent
    std::unique_ptr<DataSender> sender;              ///< set by Attach: this is a data connection
    Token token = 0;
    std::uint64_t attachments = 0;  ///< grants that this data connection has served
  };

  // Connections.
  void on_connected(Socket socket, std::string address);
  void on_message(ConnectionId id, wire::Message message);
  void on_closed(ConnectionId id, const Status& why);
  void drop_connection(ConnectionId id);
  void refuse(ConnectionId id, Status why);

  // Messages.
  void handle(ConnectionId id, Peer& peer, const wire::Hello& message);
  void handle(ConnectionId id, Peer& peer, const wire::Hold& message);
  void handle(ConnectionId id, Peer& peer, const wire::Renew& message);
  void handle(ConnectionId id, Peer& peer, const wire::FetchRequest& message);
  void handle(ConnectionId id, Peer& peer, const wire::FetchEnded& message);
  void handle(ConnectionId id, Peer& peer, const wire::Attach& message);
  void handle(ConnectionId id, Peer& peer, const wire::Pull& message);
  void handle(ConnectionId id, Peer& peer, const wire::Offer& message);
  void release(Peer& peer, LeaseId lease, LeaseEnd end);
  bool renew_one(ConnectionId id, Peer& peer, LeaseId lease);
  wire::Ended why_gone(LeaseId lease) const;

  // Reads.
  Status check_request(const Peer& peer, const wire::FetchRequest& message) const;
  std::int64_t whole_blocks(const Lease& lease, std::int64_t tokens) const;
  void sum_published(std::uint64_t id);
  void on_summed(std::uint64_t id, const std::vector<std::int64_t>& targets);
  void sum_partial(Token token);
  void try_grant(Token token);
  void pump_grants(Peer& peer);
  wire::GrantBlocks next_grant_blocks(Read& read, const Lease& lease) const;
  void end_read(Token token, const Status& why);

  // Leases.
  void tick();
  void end_lease(std::uint64_t id, LeaseEnd end);
  Lease* find_growing(LeaseId lease);
  void add_blocks(Lease& lease, const std::vector<kv::BlockId>& blocks);
  void send_progress(std::uint64_t id, const Lease& lease, Connection& holder) const;
  void tell_holders(std::uint64_t id, const Lease& lease, wire::Ended reason);
  void unpin(std::uint64_t id);

  Context& context_;
  Socket listener_;         ///< until start()
  Socket memory_listener_;  ///< until start(); none: no shared memory
  std::string memory_name_;
  std::optional<Acceptor> acceptor_;
  std::optional<Acceptor> memory_acceptor_;
  LeaseTable table_;
  std::function<Status(const wire::Offer&)> on_offer_;
  std::function<void(LeaseId, LeaseEnd)> on_lease_end_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  std::unordered_map<Token, Read> reads_;
  std::unordered_map<ConnectionId, Peer> peers_;
  std::map<LeaseTable::Holder, int> control_connections_;  ///< of each reader
  ConnectionId next_connection_ = 1;
  Seldom misfits_;  ///< by host
  BlockSums sums_;
  std::function<void()> stopped_;
  bool stopping_ = false;

  std::mutex opened_mutex_;
  std::vector<Opened> opened_;  ///< guarded by opened_mutex_
};

}  // namespace tandem::transfer
