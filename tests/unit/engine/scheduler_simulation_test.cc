// SPDX-License-Identifier: Apache-2.0
// Random walks over the scheduler with tiny pools: sequences come, are chunked, preempted, fetched, aborted, leased,
// and steps and fetches fail. The "model" derives each token from the tokens it reads through the block table, so every
// sequence that ends must have exactly the tokens it would have had alone. After every event the pool's books must
// balance, reference by reference. Each walk is made with and without running ahead; ahead, a step is planned while the
// one before is in flight, and a sequence may end with a step of its in flight. TANDEM_SEED repeats a run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <random>

#include "engine/scheduler.h"
#include "unit/engine/fake_kv.h"

namespace tandem::engine {
namespace {

using testing::FakeKv;

constexpr std::int32_t kVocab = 50;
constexpr std::int32_t kGarbage = -7;

struct Settings {
  SchedulerOptions scheduler;
  std::int32_t num_blocks = 12;
  std::int32_t max_live = 8;
  std::int32_t max_prompt = 20;
  std::int32_t max_new = 16;
};

class Simulation {
 public:
  Simulation(const Settings& settings, std::uint32_t seed)
      : settings_(settings),
        random_(seed),
        pool_(settings.num_blocks, {}),
        scheduler_(settings.scheduler, pool_),
        kv_(settings.num_blocks, settings.scheduler.block_size) {}

  void run(int num_events) {
    for (int i = 0; i < num_events && !::testing::Test::HasFatalFailure(); ++i) {
      random_event();
      check_books();
    }
    // No more arrivals: everything must end by itself, in a bounded number of steps.
    for (int i = 0; i < 20'000 && !(live_.empty() && leases_.empty() && steps_.empty()); ++i) {
      if (::testing::Test::HasFatalFailure()) return;
      if (may_start() && i % 2 == 0) start_step();
      if (!steps_.empty()) {
        complete_step();
      } else if (!fetches_.empty()) {
        end_fetch(true);
      } else {
        start_step();
        if (steps_.empty() && fetches_.empty() && !leases_.empty()) end_lease();
      }
      check_books();
    }
    ASSERT_TRUE(live_.empty()) << live_.size() << " sequences never ended";
    while (!fetches_.empty()) end_fetch(true);
    while (!leases_.empty()) end_lease();
    check_books();
    ASSERT_EQ(pool_.num_used(), 0);
    ASSERT_EQ(scheduler_.num_draining(), 0);
    ASSERT_EQ(scheduler_.num_waiting() + scheduler_.num_running() + scheduler_.num_fetching(), 0);
  }

  std::int64_t num_preempted = 0, num_fetched = 0, num_finished = 0, num_hits = 0, num_ahead = 0, num_surplus = 0;

 private:
  struct Live {
    std::vector<std::int32_t> prompt;
    std::int32_t max_new = 0;
    bool leased_at_end = false;
    std::int32_t num_new = 0;
  };
  struct Planned {
    ScheduledSequence share;
    std::vector<kv::BlockId> table;
    std::vector<std::int32_t> tokens;  ///< empty: what the step before samples
  };
  using Step = std::vector<Planned>;
  struct PlannedFetch {
    FetchOrder order;
    std::vector<std::int32_t> prompt;
    std::vector<kv::BlockId> table;
  };

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }

  void random_event() {
    switch (below(10)) {
      case 0:
      case 1:
        return add();
      case 2:
        return abort();
      case 3:
        return end_fetch(below(4) != 0);
      case 4:
        return end_lease();
      case 5:
        if (!fetches_.empty()) scribble(fetches_[below(static_cast<std::uint32_t>(fetches_.size()))]);
        return;
      default:
        if (steps_.empty() || (may_start() && below(2) == 0)) return start_step();
        return below(40) == 0 ? fail_step() : complete_step();
    }
  }

  void add() {
    if (std::ssize(live_) >= settings_.max_live) return;
    const std::int32_t capacity = settings_.num_blocks * settings_.scheduler.block_size;
    const auto length =
        static_cast<std::int32_t>(1 + below(static_cast<std::uint32_t>(std::min(settings_.max_prompt, capacity - 1))));
    Live live;
    // Few roots and long runs: many prompts share a prefix.
    const auto root = static_cast<std::int32_t>(below(3));
    for (std::int32_t i = 0; i < length; ++i) live.prompt.push_back((root * 7 + i) % kVocab);
    if (below(3) == 0) live.prompt.back() = static_cast<std::int32_t>(below(kVocab));
    live.max_new = static_cast<std::int32_t>(1 + below(static_cast<std::uint32_t>(settings_.max_new)));
    // Some may generate more than they will: they end like at a stop string, which the scheduler does not foresee.
    const std::int64_t foreseen = length + live.max_new + (below(3) == 0 ? 3 : 0);
    live.leased_at_end = foreseen == length + live.max_new && below(6) == 0;
    const SequenceId id = next_id_++;
    scheduler_.add({.id = id,
                    .prompt = live.prompt,
                    .priority = static_cast<std::int32_t>(below(3)),
                    .arrival = TimePoint{} + std::chrono::seconds(below(5)),
                    .cache_salt = below(5) == 0 ? "salt" : "",
                    .remote_prefill = below(3) == 0,
                    .sibling = below(3) == 0 ? std::optional(id - 1 - below(2)) : std::nullopt,
                    .max_tokens = std::min<std::int64_t>(foreseen, capacity + 1),
                    .pinned = below(4) == 0});
    live_.emplace(id, std::move(live));
  }

  void abort() {
    if (live_.empty() || below(3) != 0) return;
    auto victim = live_.begin();
    std::advance(victim, below(static_cast<std::uint32_t>(live_.size())));
    finish(victim->first);
    live_.erase(victim);
  }

  void start_step() {
    Decision decision = scheduler_.schedule();
    ASSERT_LE(decision.num_tokens, settings_.scheduler.max_num_batched_tokens);
    ASSERT_LE(scheduler_.num_running(), settings_.scheduler.max_num_seqs);
    num_preempted += std::ssize(decision.preempted);
    for (FetchOrder& order : decision.fetches) {
      ++num_fetched;
      const auto table = scheduler_.block_table(order.id);
      const auto& prompt = live_.at(order.id).prompt;
      fetches_.push_back({std::move(order), prompt, table});
    }
    if (decision.scheduled.empty()) return;
    Step step;
    for (const ScheduledSequence& share : decision.scheduled) {
      ASSERT_TRUE(live_.contains(share.id));
      const auto& tokens = scheduler_.tokens(share.id);
      step.push_back({share, scheduler_.block_table(share.id), {}});
      if (share.sampled_before) {
        ASSERT_EQ(share.first_position, std::ssize(tokens));
        ASSERT_EQ(share.num_tokens, 1);
        ++num_ahead;
        continue;
      }
      const auto first = tokens.begin() + share.first_position;
      step.back().tokens.assign(first, first + share.num_tokens);
    }
    steps_.push_back(std::move(step));
  }

  void finish(SequenceId id) {
    if (in_steps(id)) draining_.emplace(id, scheduler_.block_table(id));
    scheduler_.finish(id);
  }
  bool may_start() const { return steps_.size() < (settings_.scheduler.run_ahead ? 2U : 1U); }
  Step take_step() {
    Step step = std::move(steps_.front());
    steps_.pop_front();
    return step;
  }
  bool in_steps(SequenceId id) const {
    return std::any_of(steps_.begin(), steps_.end(), [id](const Step& step) {
      return std::any_of(step.begin(), step.end(), [id](const Planned& planned) { return planned.share.id == id; });
    });
  }

  void complete_step() {
    Step step = take_step();
    for (Planned& planned : step) {
      // As the worker does it; whoever got no token there does not run.
      if (planned.share.sampled_before && sampled_.contains(planned.share.id))
        planned.tokens = {sampled_.at(planned.share.id)};
      for (std::size_t i = 0; i < planned.tokens.size(); ++i) {
        kv_.write(planned.table, planned.share.first_position + static_cast<std::int64_t>(i), planned.tokens[i]);
      }
    }
    sampled_.clear();
    for (const Planned& planned : step) {
      if (planned.tokens.empty()) {
        scheduler_.step_failed(planned.share.id);
        ASSERT_FALSE(live_.contains(planned.share.id));
        continue;
      }
      const std::int64_t end = planned.share.first_position + planned.share.num_tokens;
      std::optional<std::int32_t> token;
      if (planned.share.sample) token = kv_.next_token(planned.table, end, kVocab);
      if (token) sampled_.emplace(planned.share.id, *token);
      scheduler_.advance(planned.share.id, end, token);
      const auto live = live_.find(planned.share.id);
      if (live == live_.end() || !token) continue;
      ++live->second.num_new;
      maybe_end(live);
    }
  }

  void maybe_end(std::map<SequenceId, Live>::iterator live) {
    const SequenceId id = live->first;
    const std::vector<std::int32_t> tokens = scheduler_.tokens(id);
    const std::int64_t limit = settings_.num_blocks * settings_.scheduler.block_size + 1;
    if (live->second.num_new < live->second.max_new && std::ssize(tokens) < limit) return;
    std::vector<std::int32_t> expected = live->second.prompt;
    const auto output = FakeKv::generate(expected, live->second.num_new, kVocab);
    expected.insert(expected.end(), output.begin(), output.end());
    ASSERT_EQ(tokens, expected) << "sequence " << id;
    ++num_finished;
    num_surplus += in_steps(id) ? 1 : 0;
    num_hits += scheduler_.num_cached_tokens(id);
    if (live->second.leased_at_end) {
      const auto count =
          (std::ssize(live->second.prompt) + settings_.scheduler.block_size - 1) / settings_.scheduler.block_size;
      leases_.push_back(scheduler_.finish_and_keep(id, static_cast<std::int32_t>(count)));
    } else {
      finish(id);
    }
    live_.erase(live);
  }

  void fail_step() {
    const Step step = take_step();
    sampled_.clear();
    for (const Planned& planned : step) {
      kv_.write(planned.table, planned.share.first_position, kGarbage);
      scheduler_.step_failed(planned.share.id);
      if (live_.erase(planned.share.id) > 0) finish(planned.share.id);
    }
  }

  void scribble(const PlannedFetch& fetch) {
    for (std::int64_t position = fetch.order.first_token; position < fetch.order.end_token; ++position) {
      kv_.write(fetch.table, position, kGarbage);
    }
  }

  void end_fetch(bool succeeded) {
    if (fetches_.empty()) return;
    std::swap(fetches_[below(static_cast<std::uint32_t>(fetches_.size()))], fetches_.back());
    const PlannedFetch fetch = std::move(fetches_.back());
    fetches_.pop_back();
    scribble(fetch);
    if (succeeded) {
      const std::int64_t size = settings_.scheduler.block_size;
      for (std::int64_t position = fetch.order.first_token; position < fetch.order.end_token; ++position) {
        // By the order's own destination, not by the table: they must name the same blocks.
        const std::int64_t local = position - fetch.order.first_token;
        ASSERT_EQ(fetch.order.destination.at(static_cast<std::size_t>(local / size)),
                  fetch.table.at(static_cast<std::size_t>(position / size)));
        kv_.write(fetch.order.destination, local, fetch.prompt[static_cast<std::size_t>(position)]);
      }
    }
    scheduler_.fetch_done(fetch.order.id, succeeded);
  }

  void end_lease() {
    if (leases_.empty()) return;
    pool_.release(leases_.back());
    leases_.pop_back();
  }

  void check_books() {
    ASSERT_EQ(pool_.num_used() + pool_.num_cached() + pool_.num_free(), pool_.num_blocks());
    std::vector<std::int32_t> expected(static_cast<std::size_t>(pool_.num_blocks()), 0);
    const auto count = [&](const std::vector<kv::BlockId>& blocks) {
      for (const kv::BlockId block : blocks) ++expected[static_cast<std::size_t>(block)];
    };
    for (const auto& [id, live] : live_) count(scheduler_.block_table(id));
    for (const auto& lease : leases_) count(lease);
    // Finished ones whose step or fetch still runs.
    for (const auto& [id, table] : draining_) {
      if (in_steps(id)) count(table);
    }
    for (const PlannedFetch& fetch : fetches_) {
      if (!live_.contains(fetch.order.id)) count(fetch.table);
    }
    for (kv::BlockId block = 0; block < pool_.num_blocks(); ++block) {
      ASSERT_EQ(pool_.references(block), expected[static_cast<std::size_t>(block)]) << "block " << block;
    }
  }

  Settings settings_;
  std::mt19937 random_;
  kv::BlockPool pool_;
  Scheduler scheduler_;
  FakeKv kv_;
  SequenceId next_id_ = 1;
  std::map<SequenceId, Live> live_;
  std::vector<PlannedFetch> fetches_;
  std::vector<std::vector<kv::BlockId>> leases_;
  std::deque<Step> steps_;                                   ///< in flight, oldest first
  std::map<SequenceId, std::int32_t> sampled_;               ///< by the last step
  std::map<SequenceId, std::vector<kv::BlockId>> draining_;  ///< ended with steps in flight: their blocks
};

std::uint32_t base_seed() {
  if (const char* text = std::getenv("TANDEM_SEED")) return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10));
  return std::random_device{}();
}

void simulate_one_way(const Settings& settings) {
  const std::uint32_t base = base_seed();
  std::int64_t preempted = 0, fetched = 0, finished = 0, hits = 0, ahead = 0, surplus = 0;
  for (std::uint32_t run = 0; run < 40; ++run) {
    SCOPED_TRACE("TANDEM_SEED=" + std::to_string(base + run));
    Simulation simulation(settings, base + run);
    simulation.run(2'000);
    if (::testing::Test::HasFatalFailure()) return;
    preempted += simulation.num_preempted;
    fetched += simulation.num_fetched;
    finished += simulation.num_finished;
    hits += simulation.num_hits;
    ahead += simulation.num_ahead;
    surplus += simulation.num_surplus;
  }
  // The walk must really go where it matters.
  EXPECT_GT(preempted, 50);
  EXPECT_GT(fetched, 200);
  EXPECT_GT(finished, 1'000);
  if (settings.scheduler.enable_prefix_caching) {
    EXPECT_GT(hits, 500);
  }
  if (settings.scheduler.run_ahead) {
    EXPECT_GT(ahead, 1'000);
    EXPECT_GT(surplus, 50);
  } else {
    EXPECT_EQ(ahead + surplus, 0);
  }
}

void simulate(Settings settings) {
  for (const bool run_ahead : {false, true}) {
    SCOPED_TRACE(run_ahead ? "running ahead" : "step by step");
    settings.scheduler.run_ahead = run_ahead;
    simulate_one_way(settings);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(SchedulerSimulation, Fcfs) {
  simulate({.scheduler = {.block_size = 4, .max_num_seqs = 5, .max_num_batched_tokens = 9}});
}

TEST(SchedulerSimulation, Priority) {
  simulate(
      {.scheduler = {
           .block_size = 4, .max_num_seqs = 5, .max_num_batched_tokens = 9, .policy = SchedulingPolicy::kPriority}});
}

TEST(SchedulerSimulation, WithoutPrefixCacheAndWithSmallChunks) {
  simulate({.scheduler = {.block_size = 2,
                          .max_num_seqs = 8,
                          .max_num_batched_tokens = 16,
                          .long_prefill_token_threshold = 3,
                          .enable_prefix_caching = false},
            .num_blocks = 16});
}

TEST(SchedulerSimulation, OneSeatAndOneBlockOfRoom) {
  simulate({.scheduler = {.block_size = 3, .max_num_seqs = 3, .max_num_batched_tokens = 4},
            .num_blocks = 6,
            .max_prompt = 17});
}

TEST(SchedulerSimulation, PoolsForThreeGiveTheTokensOfUnlimitedOnes) {
  // Greedy results of 64 sequences through a pool for three (see FakeKv::generate: what each would get alone).
  simulate({.scheduler = {.block_size = 4, .max_num_seqs = 64, .max_num_batched_tokens = 32},
            .num_blocks = 27,
            .max_live = 64,
            .max_prompt = 20,
            .max_new = 16});
}

}  // namespace
}  // namespace tandem::engine
