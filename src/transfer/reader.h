// SPDX-License-Identifier: Apache-2.0
// The reader's side (a decoder): fetches, and receptions of KV that is still being computed. Both are an extent that
// becomes available (a fetch: all at once; a reception: as its prefiller publishes it), is read in pieces (piece.h) and
// ends when all of it is here, or with the first error once nothing writes any more. Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "transfer/context.h"
#include "transfer/owner_link.h"
#include "transfer/piece.h"

namespace tandem::transfer {

class Reader {
 public:
  explicit Reader(Context& context) : context_(context) {}
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void hold(const Handover& source);
  void drop(const Handover& source);
  void fetch(FetchId id, Fetch fetch, FetchDone done);
  /// `name` is Delivery::reception.
  void receive(FetchId id, std::uint64_t name, Reception reception, FetchDone done);
  /// ok: the reception that it names takes its KV from there.
  Status on_offer(const wire::Offer& offer);
  void cancel(FetchId id);
  /// Cancels everything, releases all leases; `stopped` is called when nothing is left.
  void stop(std::function<void()> stopped);

 private:
  /// What a reception asks of an offer.
  struct Awaited {
    std::uint64_t name = 0;
    std::int64_t num_tokens = 0;
    std::uint64_t prompt_hash = 0;
    std::function<void()> offered;  ///< may be empty
  };
  struct Active {
    FetchId id = 0;
    std::optional<Awaited> awaited;  ///< a reception
    Handover source;                 ///< of a reception: once it was offered
    std::vector<kv::BlockId> destination;
    std::int64_t first_token = 0;
    std::int64_t end_token = 0;
    FetchDone done;
    std::shared_ptr<OwnerLink> link;      ///< none: waits for an offer
    std::vector<std::int64_t> published;  ///< by layer: end of the tokens that the owner has
    std::vector<std::int64_t> asked;      ///< by layer: end of the tokens that pieces were started for
    std::map<std::uint64_t, std::unique_ptr<Piece>> pieces;
    Status failure;  ///< the first thing that went wrong
    bool connected = false;
    bool retried = false;  ///< asked again on a new connection, and nothing has come since

    TimePoint started;
    std::optional<TimePoint> granted;  ///< the first blocks
    TimePoint moved;                   ///< the last bytes so far
    TimePoint last_progress;
    EventLoop::TimerId deadline;
    FetchStats stats;
  };

  std::shared_ptr<OwnerLink> link_to(const Handover& source);
  Active& add(FetchId id, FetchDone done);
  Status check_extent(const Active& active, std::int64_t num_tokens) const;
  void begin(Active& active);

  // Pieces.
  std::optional<Extent> next_extent(const Active& active) const;
  void start_pieces(Active& active);
  void on_piece_done(FetchId id, std::uint64_t piece, const Status& status);
  void move_on(FetchId id);

  // What links say.
  void on_ready(OwnerLink& link);
  void on_message(OwnerLink& link, wire::Message message);
  void on_progress(OwnerLink& link, const wire::Progress& progress);
  void on_lease_ended(OwnerLink& link, std::uint64_t lease, wire::Ended reason);
  void on_link_failed(OwnerLink& link, const Status& why, bool gone);

  // Ends.
  void watch_progress(FetchId id);
  void fail(FetchId id, const Status& why);
  void finish(FetchId id, Status status);

  Active* find(FetchId id);
  std::vector<FetchId> of_link(const OwnerLink& link) const;
  /// nullptr also for a piece from another owner: a peer has a say in its own pieces only.
  Piece* find_piece(std::uint64_t piece, const OwnerLink& from);
  /// Names what a fetch was about, for errors.
  static std::string subject(const Active& active);

  Context& context_;
  std::map<OwnerLink::Key, std::shared_ptr<OwnerLink>> links_;
  std::unordered_map<FetchId, std::unique_ptr<Active>> active_;
  std::unordered_map<std::uint64_t, FetchId> piece_owners_;
  std::unordered_map<std::uint64_t, FetchId> receptions_;  ///< by name
  std::uint64_t next_piece_ = 1;
  std::function<void()> stopped_;
  bool stopping_ = false;
};

}  // namespace tandem::transfer
