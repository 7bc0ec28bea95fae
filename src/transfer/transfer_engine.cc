// SPDX-License-Identifier: Apache-2.0
// Puts the sides of a transfer engine together and gives them their threads: one loop, two for copies and checksums,
// one for calls that may block.
#include "transfer/transfer_engine.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "transfer/checksum.h"
#include "transfer/context.h"
#include "transfer/offers.h"
#include "transfer/owner.h"
#include "transfer/reader.h"

namespace tandem::transfer {
namespace {

constexpr int kCopyThreads = 2;

class EngineImpl final : public TransferEngine {
 public:
  EngineImpl(const TransferOptions& options, kv::CacheMemory& memory, obs::Registry& registry,
             std::unique_ptr<EventLoop> loop, const wire::Identity& identity)
      : loop_(std::move(loop)),
        metrics_(registry),
        context_{options, memory, Shards(identity.ranks), identity, metrics_, *loop_, pool_, blocking_} {}
  ~EngineImpl() override { stop(); }

  /// Sockets first: an error leaves nothing running.
  Result<void> open() {
    const TransferOptions& options = context_.options;
    if (options.producer || options.receiver) {
      TANDEM_ASSIGN(Socket listener, listen_tcp(options.bind_host, options.port, "KV transfer (kv_port)"));
      port_ = bound_port(listener);
      Socket memory_listener;
      const std::string name = fmt::format("{:x}-{:x}", context_.identity.incarnation, random_id());
      if (options.producer && options.transport != TransportChoice::kTcp) {
        auto made = listen_memory(name);
        if (made) {
          memory_listener = std::move(*made);
        } else if (options.transport == TransportChoice::kShm) {
          return made.error();
        } else {
          log::info("transfer: {}: peers on this host will use TCP", made.error().message());
        }
      }
      owner_.emplace(context_, std::move(listener), std::move(memory_listener), name);
    }
    if (options.consumer) reader_.emplace(context_);
    if (reader_ && options.receiver)
      owner_->on_offer([this](const wire::Offer& offer) { return reader_->on_offer(offer); });
    thread_ = std::jthread([this] { loop_->run(); });
    if (owner_) loop_->post([this] { owner_->start(); });
    return {};
  }

  std::uint64_t incarnation() const override { return context_.identity.incarnation; }
  std::uint16_t port() const override { return port_; }

  void on_lease_end(std::function<void(LeaseId, LeaseEnd)> callback) override {
    if (!owner_) return;  // who opens no lease sees none end
    post([this, callback = std::move(callback)] { owner_->on_lease_end(callback); });
  }

  Handover open_lease(std::vector<kv::BlockId> blocks, std::int64_t num_tokens, std::int32_t last_token) override {
    Handover handover = opened(std::move(blocks), num_tokens, false);
    handover.last_token = last_token;
    return handover;
  }

  Handover open_growing_lease(std::int64_t num_tokens, std::uint64_t prompt_hash) override {
    Handover handover = opened({}, num_tokens, true);
    handover.prompt_hash = prompt_hash;
    return handover;
  }

  void extend(LeaseId lease, std::vector<kv::BlockId> blocks) override {
    if (owner_) post([this, lease, blocks = std::move(blocks)] { owner_->extend(lease, blocks); });
  }

  void publish(LeaseId lease, std::int32_t first_layer, std::int32_t end_layer, std::int64_t end_token) override {
    if (!owner_) return;
    post([this, lease, first_layer, end_layer, end_token] {
      owner_->publish(lease, first_layer, end_layer, end_token);
    });
  }

  void revoke(LeaseId lease) override {
    if (owner_) post([this, lease] { owner_->revoke(lease); });
  }

  void hold(const Handover& source) override {
    if (reader_) post([this, source] { reader_->hold(source); });
  }

  void drop(const Handover& source) override {
    if (reader_) post([this, source] { reader_->drop(source); });
  }

  FetchId fetch(Fetch fetch, FetchDone done) override {
    return start_counted(context_.options.consumer, "this instance is not a KV consumer; check kv_role",
                         std::move(done), [this, fetch = std::move(fetch)](FetchId id, FetchDone counted) {
                           reader_->fetch(id, fetch, std::move(counted));
                         });
  }

  std::pair<FetchId, Delivery> receive(Reception reception, FetchDone done) override {
    Delivery delivery;
    delivery.engine_id = context_.options.engine_id;
    delivery.host = context_.options.advertised_host;
    delivery.port = port_;
    delivery.blocks = reception.destination;
    delivery.incarnation = incarnation();
    delivery.reception = random_id();
    delivery.first_token = reception.first_token;
    delivery.num_tokens = reception.num_tokens;
    delivery.prompt_hash = reception.prompt_hash;
    const FetchId id = start_counted(
        context_.options.consumer && context_.options.receiver,
        "this instance takes no layerwise pushes; check kv_connector", std::move(done),
        [this, name = delivery.reception, reception = std::move(reception)](FetchId which, FetchDone counted) {
          reader_->receive(which, name, reception, std::move(counted));
        });
    return {id, std::move(delivery)};
  }

  void offer(const Delivery& to, const Handover& source, std::function<void(Status)> told) override {
    if (post([this, to, source, told] { offers_.make(to, source, told); })) return;
    told(Status(Code::kCancelled, "the transfer engine has stopped", Scope::kTransfer));
  }

  void cancel(FetchId fetch) override {
    if (reader_) post([this, fetch] { reader_->cancel(fetch); });
  }

  void stop() override {
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(accepting_, false)) return;
      if (!thread_.joinable()) return;
      loop_->post([this] { stop_sides(); });
    }
    thread_.join();
  }

 private:
  Handover opened(std::vector<kv::BlockId> blocks, std::int64_t num_tokens, bool growing) {
    TANDEM_ASSERT(context_.options.producer, "only a producer can open a lease");
    Handover handover;
    handover.engine_id = context_.options.engine_id;
    handover.host = context_.options.advertised_host;
    handover.port = port_;
    handover.blocks = blocks;
    handover.num_tokens = num_tokens;
    handover.block_size = context_.memory.layout().block_size;
    handover.tp_size = static_cast<std::int32_t>(context_.shards.ranks().size());
    handover.lease = {incarnation(), owner_->open_lease(std::move(blocks), num_tokens, growing)};
    post([this] { owner_->absorb_opened(); });
    return handover;
  }

  /// Counts it among the fetches in progress and begins it on the loop thread; `done` comes also if that cannot be.
  FetchId start_counted(bool able, const char* why_not, FetchDone done, std::function<void(FetchId, FetchDone)> begin) {
    const FetchId id = next_fetch_.fetch_add(1);
    if (!able) {
      done(id, Status(Code::kFailedPrecondition, why_not, Scope::kTransfer));
      return id;
    }
    const bool over = fetches_.fetch_add(1) >= kMaxFetches;
    const auto counted = [this, done = std::move(done)](FetchId which, Result<FetchStats> result) {
      fetches_.fetch_sub(1);
      done(which, std::move(result));
    };
    const auto start = [id, over, counted, begin = std::move(begin)] {
      if (!over) return begin(id, counted);
      counted(id, Status(Code::kResourceExhausted, fmt::format("more than {} fetches at a time", kMaxFetches)));
    };
    if (!post(start)) counted(id, Status(Code::kCancelled, "the transfer engine has stopped", Scope::kTransfer));
    return id;
  }

  /// False after stop(): what is posted later than the end of the sides would never run.
  bool post(EventLoop::Task task) {
    const std::lock_guard lock(mutex_);
    if (!accepting_) return false;
    loop_->post(std::move(task));
    return true;
  }

  /// Loop thread: readers first, they may be reading from ourselves.
  void stop_sides() {
    offers_.stop();
    const auto stop_owner = [this] {
      if (!owner_) return loop_->stop();
      owner_->stop([this] { loop_->stop(); });
    };
    if (!reader_) return stop_owner();
    reader_->stop(stop_owner);
  }

  // Order matters: pool threads post to the loop, the sides use both.
  std::unique_ptr<EventLoop> loop_;
  WorkPool pool_{kCopyThreads};
  WorkPool blocking_{1};
  TransferMetrics metrics_;
  Context context_;
  Offers offers_{context_};
  std::optional<Owner> owner_;
  std::optional<Reader> reader_;
  std::uint16_t port_ = 0;
  std::atomic<FetchId> next_fetch_{1};
  std::atomic<std::size_t> fetches_{0};
  std::mutex mutex_;
  bool accepting_ = true;  ///< guarded by mutex_
  std::jthread thread_;
};

Result<void> check_options(const TransferOptions& options, std::span<const kv::Layout> ranks) {
  const auto bad = [](std::string what) { return Status(Code::kInvalidArgument, std::move(what), Scope::kProcess); };
  if (options.engine_id.empty() || options.engine_id.size() > 1024) return bad("engine_id must have 1 to 1024 bytes");
  if (options.lease_term < std::chrono::milliseconds(10) || options.lease_term > std::chrono::hours(24)) {
    return bad(fmt::format("lease term of {} ms, expected 10 ms to a day", options.lease_term.count()));
  }
  if (options.connect_timeout.count() <= 0 || options.fetch_timeout.count() <= 0 ||
      options.offer_timeout.count() <= 0) {
    return bad("connect, fetch and offer timeouts must be positive");
  }
  const Status checked = check_ranks(ranks);
  if (!checked.ok()) return bad("KV layout: " + checked.message());
  const kv::Layout& layout = ranks.front();
  if (layout.fingerprint.size() > 16 * 1024) return bad("the model fingerprint is longer than 16 KiB");
  const std::size_t pieces = pieces_per_block(layout.num_layers, layout.total_kv_heads);
  if (pieces > wire::kMaxPiecesPerBlock) {
    return bad(fmt::format("{} layers of {} KV heads need {} checksums a block, the limit is {}", layout.num_layers,
                           layout.total_kv_heads, pieces, wire::kMaxPiecesPerBlock));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<TransferEngine>> TransferEngine::start(const TransferOptions& options, kv::CacheMemory& memory,
                                                              obs::Registry& metrics) {
  TANDEM_TRY(check_options(options, memory.ranks()));
  TANDEM_ASSIGN(std::unique_ptr<EventLoop> loop, EventLoop::create());
  wire::Identity identity;
  identity.engine_id = options.engine_id;
  identity.incarnation = new_incarnation();
  identity.boot_id = kernel_boot_id();
  identity.ranks.assign(memory.ranks().begin(), memory.ranks().end());
  auto engine = std::make_unique<EngineImpl>(options, memory, metrics, std::move(loop), identity);
  TANDEM_TRY(engine->open());
  return std::unique_ptr<TransferEngine>(std::move(engine));
}

}  // namespace tandem::transfer
