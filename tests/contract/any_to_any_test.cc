// SPDX-License-Identifier: Apache-2.0
// Pairs of instances that differ in everything that may differ: tensor-parallel size, block size, element type, over
// both transports, pulled and pushed layer by layer. After a fetch or reception the decoder's whole memory must be what
// a direct computation says, on every rank, and nothing else in it may have changed; a byte that is bent on the way
// must be found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/float16.h"
#include "contract/transfer_fixture.h"

namespace tandem::transfer::test {
namespace {

using kv::ElementType;
using Vector = std::vector<float>;

/// What is stored for a vector of numbers, by plain arithmetic.
std::vector<std::byte> stored(ElementType type, const Vector& values) {
  std::vector<std::byte> bytes(kv::vector_bytes(type, static_cast<std::int32_t>(values.size())));
  float most = 0.0F;
  for (const float value : values) most = std::max(most, std::fabs(value));
  const float step = most / 127.0F;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == ElementType::kF32) std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    if (type == ElementType::kBf16) {
      const bf16_t rounded = to_bf16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &rounded, 2);
    }
    if (type == ElementType::kInt8) bytes[i] = static_cast<std::byte>(std::lrint(step == 0 ? 0 : values[i] / step));
  }
  if (type == ElementType::kInt8) std::memcpy(bytes.data() + values.size(), &step, sizeof step);
  return bytes;
}

/// The numbers that stored bytes stand for.
Vector meaning(ElementType type, const std::vector<std::byte>& bytes, std::size_t dim) {
  Vector values(dim);
  float step = 0.0F;
  if (type == ElementType::kInt8) std::memcpy(&step, bytes.data() + dim, sizeof step);
  for (std::size_t i = 0; i < dim; ++i) {
    if (type == ElementType::kF32) std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    if (type == ElementType::kBf16) {
      bf16_t rounded;
      std::memcpy(&rounded, bytes.data() + 2 * i, 2);
      values[i] = to_float(rounded);
    }
    if (type == ElementType::kInt8) values[i] = static_cast<float>(static_cast<std::int8_t>(bytes[i])) * step;
  }
  return values;
}

/// What the model computed for a place: different everywhere, with zero vectors among them.
Vector computed(std::int32_t layer, int k_or_v, std::int32_t head, std::int64_t token, std::int32_t dim) {
  std::minstd_rand random(static_cast<std::uint32_t>(1 + ((layer * 2 + k_or_v) * 32 + head) * 4096 + token));
  Vector values(static_cast<std::size_t>(dim));
  if (random() % 16 == 0) return values;
  for (float& value : values) value = static_cast<float>(random()) / 5e8F - 2.0F;
  return values;
}

struct Side {
  std::int32_t tp = 1;
  std::int32_t block_size = 16;
  ElementType element = ElementType::kBf16;
};

struct Case {
  std::int32_t query_heads = 12;
  std::int32_t kv_heads = 12;
  std::int32_t head_dim = 8;
  Side p;
  Side d;
  std::int64_t num_tokens = 1;
  std::int64_t first = 0;
  std::int64_t end = 1;
  TransportChoice transport = TransportChoice::kShm;
  bool in_pieces = false;
  bool layerwise = false;
  std::uint32_t seed = 0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  const auto side = [&](const Side& s) -> std::ostream& {
    return out << "TP " << s.tp << ", blocks of " << s.block_size << ", " << kv::element_name(s.element) << "; ";
  };
  out << "seed " << c.seed << ": " << c.query_heads << "/" << c.kv_heads << " heads of " << c.head_dim << "; P ";
  side(c.p) << "D ";
  return side(c.d) << "[" << c.first << ", " << c.end << ") of " << c.num_tokens << " over "
                   << (c.transport == TransportChoice::kShm ? "shm" : "tcp") << (c.in_pieces ? " in pieces" : "")
                   << (c.layerwise ? ", layerwise" : "");
}

constexpr std::int32_t kLayers = 3;

std::vector<kv::Layout> ranks_of(const Case& c, const Side& side) {
  kv::Layout whole;
  whole.num_layers = kLayers;
  whole.num_blocks = static_cast<std::int32_t>(c.num_tokens / side.block_size) + 4;
  whole.block_size = side.block_size;
  whole.total_kv_heads = whole.num_kv_heads = c.kv_heads;
  whole.head_dim = c.head_dim;
  whole.element = side.element;
  whole.fingerprint = "model";
  auto ranks = kv::split_heads(whole, c.query_heads, side.tp);
  EXPECT_TRUE(ranks) << ranks.error().to_string();
  return *ranks;
}

std::vector<kv::BlockId> shuffled_blocks(const kv::Layout& layout, std::int64_t count, std::mt19937& random) {
  std::vector<kv::BlockId> blocks(static_cast<std::size_t>(layout.num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  blocks.resize(static_cast<std::size_t>(count));
  return blocks;
}

/// Visits (rank layout, layer, K|V, head of the model, token, byte in memory) of tokens in all ranks.
template <class Visit>
void for_each_vector(std::span<const kv::Layout> ranks, const std::vector<kv::BlockId>& blocks, std::int64_t first,
                     std::int64_t end, const Visit& visit) {
  for (const kv::Layout& rank : ranks) {
    for (std::int64_t token = first; token < end; ++token) {
      const auto index = static_cast<std::size_t>(token / rank.block_size - first / rank.block_size);
      const auto place = static_cast<std::int32_t>(token % rank.block_size);
      for (std::int32_t layer = 0; layer < rank.num_layers; ++layer) {
        for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
          for (std::int32_t head = 0; head < rank.num_kv_heads; ++head) {
            visit(layer, k_or_v, rank.first_kv_head + head, token,
                  rank.offset(layer, blocks[index], k_or_v, head, place));
          }
        }
      }
    }
  }
}

/// One pair and one prompt.
struct Exchange {
  explicit Exchange(const Case& of)
      : c(of),
        random(c.seed),
        p(prefiller_options(c.transport), ranks_of(c, c.p)),
        d(receiver_options(c.transport), ranks_of(c, c.d)),
        from(shuffled_blocks(p.memory->layout(), (c.num_tokens + c.p.block_size - 1) / c.p.block_size, random)),
        to(shuffled_blocks(d.memory->layout(), (c.end + c.d.block_size - 1) / c.d.block_size - c.first / c.d.block_size,
                           random)) {
    if (c.in_pieces) faults.piece_bytes = 1000;
    d.faults->set(faults);
  }

  static TransferOptions receiver_options(TransportChoice transport) {
    TransferOptions options = decoder_options(transport);
    options.bind_host = "127.0.0.1";
    options.receiver = true;
    return options;
  }
  std::vector<std::byte> at_p(std::int32_t layer, int k_or_v, std::int32_t head, std::int64_t token) const {
    return stored(c.p.element, computed(layer, k_or_v, head, token, c.head_dim));
  }
  /// The prefiller computes tokens [first, end) in one layer.
  void compute(std::int32_t in_layer, std::int64_t first, std::int64_t end) {
    const std::vector<kv::BlockId> blocks(from.begin() + first / c.p.block_size, from.end());
    for_each_vector(p.memory->ranks(), blocks, first, end,
                    [&](std::int32_t layer, int k_or_v, std::int32_t head, std::int64_t token, std::size_t at) {
                      if (layer != in_layer) return;
                      const std::vector<std::byte> bytes = at_p(layer, k_or_v, head, token);
                      std::memcpy(p.alias + at, bytes.data(), bytes.size());
                    });
  }
  std::vector<std::byte> expected_memory() const {
    std::vector<std::byte> expected(d.memory->generations_offset());
    for_each_vector(d.memory->ranks(), to, c.first, c.end,
                    [&](std::int32_t layer, int k_or_v, std::int32_t head, std::int64_t token, std::size_t at) {
                      std::vector<std::byte> bytes = at_p(layer, k_or_v, head, token);
                      if (c.d.element != c.p.element) {
                        bytes = stored(c.d.element, meaning(c.p.element, bytes, static_cast<std::size_t>(c.head_dim)));
                      }
                      std::memcpy(expected.data() + at, bytes.data(), bytes.size());
                    });
    return expected;
  }

  std::shared_ptr<Outcome> pull(Handover& lease) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) compute(layer, 0, c.num_tokens);
    lease = p.lease(from, c.num_tokens);
    EXPECT_EQ(lease.tp_size, c.p.tp);
    d.engine->hold(lease);  // so that it outlives the fetch
    d.engine->hold(lease);
    return d.fetch(lease, to, c.first, c.end);
  }

  /// Chunks at any borders, later chunks on their way through early layers while earlier ones are in late layers.
  std::shared_ptr<Outcome> push(Handover& lease) {
    auto outcome = std::make_shared<Outcome>();
    const auto [id, delivery] = d.engine->receive(
        {to, c.first, c.end, c.num_tokens, 77},
        [outcome](FetchId which, Result<FetchStats> result) { outcome->set(which, std::move(result)); });
    lease = p.engine->open_growing_lease(c.num_tokens, 77);
    d.engine->hold(lease);
    std::vector<std::int64_t> ends = {c.num_tokens};
    for (auto i = random() % 4; i > 0; --i) {
      ends.push_back(1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(c.num_tokens)));
    }
    std::sort(ends.begin(), ends.end());
    const auto offer_at = random() % 3;
    p.engine->extend(lease.lease, from);
    std::vector<std::size_t> chunks(kLayers);  // done, by layer
    for (std::size_t step = 0; chunks.back() < ends.size(); ++step) {
      if (step == offer_at) offer(delivery, lease);
      const auto layer = static_cast<std::size_t>(random() % kLayers);
      if (chunks[layer] == (layer == 0 ? ends.size() : chunks[layer - 1])) {
        if (step < offer_at) --step;
        continue;
      }
      const std::size_t chunk = chunks[layer]++;
      compute(static_cast<std::int32_t>(layer), chunk == 0 ? 0 : ends[chunk - 1], ends[chunk]);
      p.engine->publish(lease.lease, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(layer) + 1,
                        ends[chunk]);
    }
    return outcome;
  }
  void offer(const Delivery& delivery, const Handover& lease) {
    p.engine->offer(delivery, lease, [](const Status& told) { EXPECT_TRUE(told.ok()) << told.to_string(); });
  }

  Case c;
  std::mt19937 random;
  Node p;
  Node d;
  std::vector<kv::BlockId> from;
  std::vector<kv::BlockId> to;
  Faults faults;
};

void check(const Case& c) {
  SCOPED_TRACE(::testing::PrintToString(c));
  Exchange pair(c);
  Handover lease;
  const auto outcome = c.layerwise ? pair.push(lease) : pair.pull(lease);
  ASSERT_TRUE(outcome->wait()) << outcome->wait().error().to_string();
  const std::vector<std::byte> expected = pair.expected_memory();
  const std::vector<std::byte> got(pair.d.alias, pair.d.alias + expected.size());
  const auto wrong = std::mismatch(got.begin(), got.end(), expected.begin());
  ASSERT_TRUE(wrong.first == got.end()) << "byte " << wrong.first - got.begin() << " of the decoder's memory";
  const std::uint64_t bytes = static_cast<std::uint64_t>(c.end - c.first) * kLayers * 2 *
                              static_cast<std::uint64_t>(c.kv_heads) * kv::vector_bytes(c.p.element, c.head_dim);
  EXPECT_EQ(outcome->wait()->bytes, bytes) << "each head moves once";
  if (c.layerwise) return;

  // Positions are those of one move: a conversion has several, of which each is bent.
  pair.faults.corrupt_byte =
      pair.random() % std::min<std::uint64_t>(bytes, static_cast<std::uint64_t>(c.p.block_size * 2 * c.head_dim));
  pair.d.faults->set(pair.faults);
  const auto bent = pair.d.fetch(lease, pair.to, c.first, c.end);
  ASSERT_FALSE(bent->wait());
  EXPECT_EQ(bent->wait().error().code(), Code::kDataLoss) << bent->wait().error().to_string();
  EXPECT_TRUE(pair.p.lease_end(lease.lease).has_value());
}

Case random_case(std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&]<class T>(std::initializer_list<T> of) { return *(of.begin() + random() % of.size()); };
  Case c;
  c.seed = seed;
  std::tie(c.query_heads, c.kv_heads) =
      pick({std::pair(12, 12), std::pair(12, 2), std::pair(24, 8), std::pair(24, 3), std::pair(24, 1)});
  c.head_dim = pick({8, 10, 16});
  for (Side* side : {&c.p, &c.d}) {
    side->tp = c.query_heads == 12 ? pick({1, 2, 3, 4, 6}) : pick({1, 2, 3, 4, 6, 8});
    side->block_size = pick({16, 64, 128});
    side->element = pick({ElementType::kBf16, ElementType::kF32, ElementType::kInt8});
  }
  if (seed % 2 == 0) c.d.element = c.p.element;
  c.num_tokens = 1 + static_cast<std::int64_t>(random() % 300);
  c.end =
      random() % 2 == 0 ? c.num_tokens : 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(c.num_tokens));
  if (random() % 2 == 0) {
    const std::int64_t blocks_before = (c.end - 1) / c.d.block_size;
    c.first = static_cast<std::int64_t>(random() % static_cast<unsigned>(blocks_before + 1)) * c.d.block_size;
  }
  c.transport = pick({TransportChoice::kShm, TransportChoice::kTcp});
  c.in_pieces = random() % 4 == 0;
  return c;
}

TEST(AnyToAny, RandomPairsArriveToTheLetterOnEveryRank) {
  for (std::uint32_t seed = 0; seed < 120; ++seed) {
    check(random_case(seed));
    if (HasFatalFailure()) return;
  }
}

TEST(AnyToAny, RandomPairsArriveToTheLetterLayerByLayer) {
  for (std::uint32_t seed = 5000; seed < 5120; ++seed) {
    Case c = random_case(seed);
    c.layerwise = true;
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST(AnyToAny, EveryElementTypeToEveryOtherOverBothTransports) {
  std::uint32_t seed = 1000;
  for (const TransportChoice transport : {TransportChoice::kShm, TransportChoice::kTcp}) {
    for (const ElementType from : {ElementType::kBf16, ElementType::kF32, ElementType::kInt8}) {
      for (const ElementType to : {ElementType::kBf16, ElementType::kF32, ElementType::kInt8}) {
        Case c;
        c.seed = seed++;
        c.kv_heads = 2;
        c.p = {3, 16, from};
        c.d = {4, 64, to};
        c.num_tokens = c.end = 150;
        c.transport = transport;
        check(c);
      }
    }
  }
}

/// More KV than the buffer of a conversion holds: many blocks of few layers, and many layers of few blocks.
TEST(AnyToAny, ConversionsLargerThanTheirBufferGoWindowByWindow) {
  for (const std::int64_t tokens : {5000, 2000}) {
    Case c;
    c.seed = static_cast<std::uint32_t>(tokens);
    c.head_dim = 32;
    c.p = {2, 16, ElementType::kF32};
    c.d = {1, 128, ElementType::kInt8};
    c.num_tokens = tokens;
    c.end = tokens - 1;
    c.first = 256;
    c.transport = tokens == 5000 ? TransportChoice::kShm : TransportChoice::kTcp;
    check(c);
  }
}

/// A decoder's replicas are filled from the copy that was verified, and a prefiller's first holder is the one read.
TEST(AnyToAny, ReplicatedHeadsOnBothSides) {
  for (const TransportChoice transport : {TransportChoice::kShm, TransportChoice::kTcp}) {
    Case c;
    c.seed = 7;
    c.kv_heads = 2;
    c.p = {6, 16, ElementType::kBf16};
    c.d = {4, 16, ElementType::kBf16};
    c.num_tokens = c.end = 100;
    c.transport = transport;
    check(c);
  }
}

}  // namespace
}  // namespace tandem::transfer::test
