// SPDX-License-Identifier: Apache-2.0
// Experts spread over processes: whatever the number of processes and ranks, whatever each process has to do, every
// token has the very bits of the run in one process. And what a process sends that makes no sense ends the step for
// all, with its name, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <tuple>

#include "comm/group.h"
#include "model/generator.h"
#include "support/model_support.h"

namespace tandem::testing {
namespace {

using model::ComputeType;
using model::LogitsOf;
using model::SequenceInput;
using ::testing::AllOf;
using ::testing::HasSubstr;

model::ModelOptions options_for(ComputeType compute, kernels::Isa isa) {
  model::ModelOptions options;
  options.compute = compute;
  options.isa = isa;
  options.max_positions = 256;
  return options;
}

/// Changes what its process sends in one round.
class Tampering : public comm::Group {
 public:
  using Change = std::function<void(std::vector<std::byte>& message)>;
  Tampering(comm::Group& inner, int round, int to, Change change)
      : inner_(inner), round_(round), to_(to), change_(std::move(change)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Result<void> start_step() override { return inner_.start_step(); }
  Result<void> begin(std::span<const comm::Bytes> outgoing) override {
    if (round_-- != 0) return inner_.begin(outgoing);
    const comm::Bytes good = outgoing[static_cast<std::size_t>(to_)];
    changed_.assign(good.begin(), good.end());
    change_(changed_);
    std::vector<comm::Bytes> bad(outgoing.begin(), outgoing.end());
    bad[static_cast<std::size_t>(to_)] = changed_;
    return inner_.begin(bad);
  }
  Result<std::span<const comm::Bytes>> finish() override { return inner_.finish(); }
  bool wait_for_others(std::chrono::milliseconds timeout) override { return inner_.wait_for_others(timeout); }
  void wake() override { inner_.wake(); }

 private:
  comm::Group& inner_;
  int round_;
  const int to_;
  const Change change_;
  std::vector<std::byte> changed_;
};

/// The processes of an instance, as threads. Each has a model of its own with its share of the experts.
class Instance {
 public:
  Instance(const model::Checkpoint& checkpoint, const model::ModelOptions& options,
           const std::vector<std::int32_t>& first_rank, std::vector<comm::Group*> groups, int threads = 1) {
    for (comm::Group* group : groups) {
      model::ModelOptions own = options;
      own.experts = {first_rank.back(), first_rank, group};
      runners_.push_back(std::make_unique<ModelRunner>(checkpoint, own, threads));
    }
  }

  ModelRunner& runner(std::size_t process) { return *runners_[process]; }
  std::size_t size() const { return runners_.size(); }
  /// Calls body(process) for all processes at once.
  void run(const std::function<void(std::size_t process)>& body) const {
    std::vector<std::thread> threads;
    for (std::size_t process = 0; process < runners_.size(); ++process)
      threads.emplace_back([&, process] { body(process); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::vector<std::unique_ptr<ModelRunner>> runners_;
};

std::vector<comm::Group*> pointers(const std::vector<std::unique_ptr<comm::Group>>& groups) {
  std::vector<comm::Group*> list;
  for (const auto& group : groups) list.push_back(group.get());
  return list;
}

using Parameter = std::tuple<std::string, ComputeType, kernels::Isa>;

class ExpertParallel : public ::testing::TestWithParam<Parameter> {
 protected:
  ExpertParallel() : golden_(load_golden(std::get<0>(GetParam()))) {
    checkpoint_ = model::make_synthetic_checkpoint(golden_.config, golden_.salt);
    options_ = options_for(std::get<1>(GetParam()), std::get<2>(GetParam()));
    for (const auto& [name, prompt] : golden_.prompts) {
      prompts_.push_back(prompt);
      expected_.push_back(ModelRunner(*checkpoint_, options_).all_logits(prompt));
    }
  }

  // Process p runs prompt p in chunks of its own size; one without a prompt, and one that is done, only serves.
  void expect_same_bits(const std::vector<std::int32_t>& first_rank, int threads) {
    const std::size_t size = first_rank.size() - 1;
    const auto groups = comm::make_local_group(static_cast<int>(size));
    Instance instance(*checkpoint_, options_, first_rank, pointers(groups), threads);
    constexpr std::size_t kChunks[] = {45, 3, 1, 1};
    constexpr int kSteps = 4;
    instance.run([&](std::size_t process) {
      const bool idle = process >= prompts_.size();
      ModelRunner& runner = instance.runner(process);
      const auto table = runner.allocate(idle ? 0 : 100);
      std::size_t done = 0;
      for (int step = 0; step < kSteps; ++step) {
        if (idle || done == prompts_[process].size()) {
          EXPECT_TRUE(runner.forward({}).empty());
          continue;
        }
        const Tokens& prompt = prompts_[process];
        const std::size_t count = std::min(kChunks[process], prompt.size() - done);
        // Every second step wants no logits: then a process has no rows of its own in the last layer.
        const LogitsOf logits = step % 2 == 0 ? LogitsOf::kAll : LogitsOf::kNone;
        const SequenceInput input{std::span(prompt).subspan(done, count), static_cast<std::int64_t>(done), table,
                                  logits};
        const std::vector<Logits> rows = runner.forward(std::span(&input, 1));
        for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], expected_[process][done + i]) << process;
        done += count;
      }
    });
  }

  GoldenModel golden_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  model::ModelOptions options_;
  std::vector<Tokens> prompts_;  // P100, P8
  std::vector<std::vector<Logits>> expected_;
};

TEST_P(ExpertParallel, EveryNumberOfProcessesGivesTheBitsOfOne) {
  for (const int threads : {1, 2}) {
    expect_same_bits({0, 1}, threads);
    expect_same_bits({0, 1, 2}, threads);
    expect_same_bits({0, 1, 2, 3}, threads);
    expect_same_bits({0, 1, 2, 3, 4}, threads);
  }
}

TEST_P(ExpertParallel, RanksNeedNotBeSpreadEvenly) {
  expect_same_bits({0, 3, 4}, 1);
  expect_same_bits({0, 2, 2, 4}, 1);     // a process without ranks
  expect_same_bits({0, 2, 4, 6, 8}, 1);  // more ranks than experts: the last process has none
}

TEST_P(ExpertParallel, RanksOfOneProcessOnlyOwn) {
  for (const std::int32_t ranks : {1, 2, 3, 4, 64}) {
    model::ModelOptions options = options_;
    options.experts.num_ranks = ranks;
    EXPECT_EQ(ModelRunner(*checkpoint_, options).all_logits(prompts_[0]), expected_[0]) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertParallel,
                         ::testing::Combine(::testing::Values("T2-qwen3moe", "T2b-qwen3moe-mixed"),
                                            ::testing::Values(ComputeType::kFloat32, ComputeType::kBf16,
                                                              ComputeType::kW8A8),
                                            ::testing::ValuesIn(available_isas())),
                         [](const ::testing::TestParamInfo<Parameter>& parameter) {
                           std::string name = std::get<0>(parameter.param) + "_" +
                                              std::string(model::compute_name(std::get<1>(parameter.param))) + "_" +
                                              std::string(kernels::isa_name(std::get<2>(parameter.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class BrokenPeers : public ::testing::Test {
 protected:
  BrokenPeers() : golden_(load_golden("T2-qwen3moe")) {
    checkpoint_ = model::make_synthetic_checkpoint(golden_.config, golden_.salt);
    expected_ = ModelRunner(*checkpoint_, options_).all_logits(prompt()).back();
  }
  const Tokens& prompt() const { return golden_.prompts.at("P8"); }

  /// One step of each of three processes with the prompt; then, where `empty_step_after_error`, a step without
  /// sequences of those that got an error, as an engine does when it sees that others are still at work.
  std::vector<std::string> step(Instance& instance, bool empty_step_after_error = false) const {
    std::vector<std::string> errors(instance.size());
    instance.run([&](std::size_t process) {
      ModelRunner& runner = instance.runner(process);
      const auto table = runner.allocate(8);
      const SequenceInput input{prompt(), 0, table, LogitsOf::kLast};
      Logits logits(static_cast<std::size_t>(golden_.config.vocab_size));
      const auto passed = runner.model().forward(std::span(&input, 1), runner.cache(), logits);
      if (passed) {
        EXPECT_EQ(logits, expected_);
        return;
      }
      EXPECT_EQ(passed.error().scope(), Scope::kPeer);
      errors[process] = passed.error().message();
      if (!empty_step_after_error || process != 0) return;
      EXPECT_FALSE(runner.model().forward({}, runner.cache(), {}));
    });
    return errors;
  }

  /// Process 1 changes what it sends to process 0 in `round` of the first step.
  std::vector<std::string> errors_of(int round, const Tampering::Change& change, bool empty_step_after_error = false) {
    const auto groups = comm::make_local_group(3);
    Tampering tampering(*groups[1], round, 0, change);
    Instance instance(*checkpoint_, options_, {0, 1, 2, 3}, {groups[0].get(), &tampering, groups[2].get()});
    std::vector<std::string> errors = step(instance, empty_step_after_error);
    // The next steps are good for all.
    for (int i = 0; i < 2; ++i) EXPECT_THAT(step(instance), ::testing::Each(""));
    return errors;
  }

  const model::ModelOptions options_ = options_for(ComputeType::kFloat32, kernels::Isa::kPortable);
  GoldenModel golden_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  Logits expected_;
};

TEST_F(BrokenPeers, ABrokenDispatchEndsTheStepForAll) {
  for (const int layer : {0, 3}) {
    const auto errors = errors_of(2 * layer, [](std::vector<std::byte>& message) { message.pop_back(); });
    EXPECT_THAT(errors[0], AllOf(HasSubstr("process 1 of the instance"), HasSubstr("bytes, expected")));
    for (const std::size_t other : {1U, 2U})
      EXPECT_THAT(errors[other], AllOf(HasSubstr("process 0 of the instance"), HasSubstr("could not go on"),
                                       HasSubstr("bytes, expected")));
  }
}

TEST_F(BrokenPeers, AnExpertOfAnotherProcessIsRefused) {
  const auto errors = errors_of(0, [](std::vector<std::byte>& message) { message[28] = std::byte{5}; });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("asks for expert 5"), HasSubstr("[0, 2)")));
}

TEST_F(BrokenPeers, AnotherModelIsNamed) {
  const auto errors = errors_of(0, [](std::vector<std::byte>& message) { message[0] ^= std::byte{1}; });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("process 1"), HasSubstr("another model")));
}

TEST_F(BrokenPeers, ABrokenCombineIsNoticedByTheOthersInTheNextRound) {
  const auto errors = errors_of(1, [](std::vector<std::byte>& message) { message.pop_back(); }, true);
  EXPECT_THAT(errors[0], AllOf(HasSubstr("process 1 of the instance"), HasSubstr("a combine of")));
  for (const std::size_t other : {1U, 2U}) EXPECT_THAT(errors[other], HasSubstr("process 0"));
}

TEST_F(BrokenPeers, PlacementsThatDoNotFitAreRefused) {
  const auto groups = comm::make_local_group(2);
  kernels::ThreadTeam team(1);
  const auto error = [&](std::int32_t ranks, std::vector<std::int32_t> first_rank) {
    model::ModelOptions options = options_;
    options.experts = {ranks, std::move(first_rank), groups[0].get()};
    const auto loaded = model::Model::load(*checkpoint_, options, team);
    return loaded ? std::string() : loaded.error().message();
  };
  EXPECT_EQ(error(3, {0, 1, 3}), "");
  EXPECT_THAT(error(0, {0, 0, 0}), HasSubstr("0 ranks"));
  EXPECT_THAT(error(2, {}), HasSubstr("0 processes are given for a group of 2"));
  EXPECT_THAT(error(2, {0, 2}), HasSubstr("1 processes are given for a group of 2"));
  EXPECT_THAT(error(2, {0, 1, 3}), HasSubstr("go from 0 to 3"));
  EXPECT_THAT(error(4, {0, 5, 4}), HasSubstr("ascending"));
}

TEST_F(BrokenPeers, OnlyOwnExpertsAreLoaded) {
  const auto groups = comm::make_local_group(4);
  const auto bytes = [&](const model::ExpertPlacement& experts) {
    model::ModelOptions options = options_;
    options.experts = experts;
    return ModelRunner(*checkpoint_, options).model().weight_bytes();
  };
  std::vector<std::size_t> shares;
  for (const auto& group : groups) shares.push_back(bytes({4, {0, 1, 2, 3, 4}, group.get()}));
  const std::size_t whole = bytes({});
  EXPECT_EQ(shares[0], shares[1]) << "2, 2, 1 and 1 experts";
  EXPECT_EQ(shares[2], shares[3]);
  const std::size_t expert = shares[0] - shares[2];
  EXPECT_GE(expert, std::size_t{3} * 24 * 40 * 4 * 4) << "of four layers";
  EXPECT_EQ(whole, shares[0] + 4 * expert);
}

}  // namespace
}  // namespace tandem::testing
