// SPDX-License-Identifier: Apache-2.0
// Attention over paged KV of every implementation: against softmax in double, chunked against whole, batched against
// alone, split over ranks against one, and with NaN in every slot that no query may see.
#include <algorithm>
#include <cstring>

#include "base/float16.h"
#include "kernels_test_support.h"

namespace tandem::kernels {
namespace {

struct Shape {
  std::int32_t num_heads;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::int32_t block_size;
  KvType type;
};

std::size_t vector_bytes(const Shape& shape) {
  return PagedKv{.head_dim = shape.head_dim, .type = shape.type}.vector_bytes();
}

/// One layer of KV memory of `num_ranks` ranks, full of NaN, each laid out [block][K|V][kv head][token][dim] with a gap
/// after each block. A rank holds the KV heads that its query heads read.
class Cache {
 public:
  Cache(const Shape& shape, std::int32_t num_blocks, std::int32_t num_ranks = 1) {
    const std::int32_t heads = shape.num_heads / num_ranks;
    const std::int32_t group = shape.num_heads / shape.num_kv_heads;
    for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
      PagedKv kv;
      kv.first_head = rank * heads;
      kv.num_heads = heads;
      kv.first_kv_head = kv.first_head / group;
      kv.num_kv_heads = (kv.first_head + heads - 1) / group - kv.first_kv_head + 1;
      kv.block_size = shape.block_size;
      kv.head_dim = shape.head_dim;
      kv.type = shape.type;
      kv.head_stride = static_cast<std::size_t>(shape.block_size) * kv.vector_bytes();
      kv.kv_stride = kv.head_stride * static_cast<std::size_t>(kv.num_kv_heads);
      kv.block_stride = 2 * kv.kv_stride + 64;
      // Bits that are NaN in each type, and NaN as the scale of an int8 vector.
      auto& memory = memory_.emplace_back(kv.block_stride * static_cast<std::size_t>(num_blocks), std::byte{0xff});
      kv.data = memory.data();
      ranks_.push_back(kv);
    }
  }
  std::span<const PagedKv> ranks() const { return ranks_; }
  /// Of the only rank.
  const PagedKv& kv() const { return ranks_.at(0); }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<PagedKv> ranks_;
};

/// A prompt with its q, k and v; blocks in an order that is not ascending.
struct Prompt {
  Shape shape;
  std::int64_t length;
  std::vector<float> q, k, v;
  std::vector<std::int32_t> block_table;

  Prompt(const Shape& s, std::int64_t len, std::uint64_t seed, std::int32_t first_block = 0) : shape(s), length(len) {
    q = random_floats(static_cast<std::size_t>(len * s.num_heads * s.head_dim), seed, 2.0F);
    k = random_floats(static_cast<std::size_t>(len * s.num_kv_heads * s.head_dim), seed + 1, 2.0F);
    v = random_floats(static_cast<std::size_t>(len * s.num_kv_heads * s.head_dim), seed + 2);
    const auto blocks = static_cast<std::int32_t>((len + s.block_size - 1) / s.block_size);
    for (std::int32_t i = 0; i < blocks; ++i) block_table.push_back(first_block + (blocks - 1 - i));
  }
  /// Blocks that a cache for this prompt needs.
  std::int32_t num_blocks() const { return *std::max_element(block_table.begin(), block_table.end()) + 1; }
  std::int64_t q_width() const { return std::int64_t{shape.num_heads} * shape.head_dim; }
  std::int64_t kv_width() const { return std::int64_t{shape.num_kv_heads} * shape.head_dim; }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.head_dim)); }
};

/// Stores and attends tokens [begin, end) of the prompt in one call each.
void step(const Ops& ops, ThreadTeam& team, const Prompt& prompt, std::int64_t begin, std::int64_t end,
          const Cache& cache, float* out) {
  const AttentionSequence sequence{0, end - begin, begin, prompt.block_table};
  ops.store_kv(team, {&sequence, 1}, prompt.k.data() + begin * prompt.kv_width(), prompt.kv_width(),
               prompt.v.data() + begin * prompt.kv_width(), prompt.kv_width(), cache.ranks());
  ops.attention(team, {&sequence, 1}, prompt.q.data() + begin * prompt.q_width(), prompt.q_width(),
                prompt.shape.num_heads / prompt.shape.num_kv_heads, prompt.scale(), cache.ranks(),
                out + begin * prompt.q_width(), prompt.q_width());
}

std::vector<float> in_chunks(const Ops& ops, int threads, const Prompt& prompt, std::int64_t chunk,
                             std::int32_t num_ranks = 1) {
  ThreadTeam team(threads);
  const Cache cache(prompt.shape, prompt.num_blocks(), num_ranks);
  std::vector<float> out(static_cast<std::size_t>(prompt.length * prompt.q_width()), poison());
  for (std::int64_t begin = 0; begin < prompt.length; begin += chunk) {
    step(ops, team, prompt, begin, std::min(begin + chunk, prompt.length), cache, out.data());
  }
  return out;
}

/// The vectors of `values` (rows of heads) as the cache gives them back.
std::vector<float> as_stored(const Shape& s, std::vector<float> values) {
  for (auto vector = values.begin(); vector < values.end(); vector += s.head_dim) {
    float most = 0;
    for (int i = 0; i < s.head_dim; ++i) most = std::max(most, std::fabs(vector[i]));
    const float scale = most / 127.0F;
    for (int i = 0; i < s.head_dim; ++i) {
      if (s.type == KvType::kBf16) vector[i] = to_float(to_bf16(vector[i]));
      if (s.type == KvType::kInt8) vector[i] = std::nearbyint(vector[i] / scale) * scale;
    }
  }
  return values;
}

std::vector<float> expected_output(const Prompt& prompt) {
  const Shape& s = prompt.shape;
  const std::vector<float> stored_k = as_stored(s, prompt.k);
  const std::vector<float> stored_v = as_stored(s, prompt.v);
  std::vector<float> out(static_cast<std::size_t>(prompt.length * prompt.q_width()));
  const std::int64_t group = s.num_heads / s.num_kv_heads;
  for (std::int64_t row = 0; row < prompt.length; ++row) {
    for (std::int64_t head = 0; head < s.num_heads; ++head) {
      const float* q = prompt.q.data() + row * prompt.q_width() + head * s.head_dim;
      const std::int64_t kv_column = head / group * s.head_dim;
      std::vector<double> score;
      for (std::int64_t j = 0; j <= row; ++j) {
        const float* k = stored_k.data() + j * prompt.kv_width() + kv_column;
        double dot = 0;
        for (int i = 0; i < s.head_dim; ++i) dot += static_cast<double>(q[i]) * k[i];
        score.push_back(dot * prompt.scale());
      }
      const double most = *std::max_element(score.begin(), score.end());
      double total = 0;
      for (double& value : score) total += value = std::exp(value - most);
      for (int i = 0; i < s.head_dim; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j <= row; ++j) {
          sum += score[static_cast<std::size_t>(j)] *
                 stored_v[static_cast<std::size_t>(j * prompt.kv_width() + kv_column + i)];
        }
        out[static_cast<std::size_t>(row * prompt.q_width() + head * s.head_dim + i)] = static_cast<float>(sum / total);
      }
    }
  }
  return out;
}

constexpr KvType kAllTypes[] = {KvType::kBf16, KvType::kF32, KvType::kInt8};

/// AVX-512 attends in BF16 over int8 KV too.
double tolerance(KvType type) { return type == KvType::kF32 ? 1e-5 : 1e-2; }

class AttentionTest : public EveryIsa {};

TEST_P(AttentionTest, MatchesSoftmaxInDouble) {
  for (const KvType type : kAllTypes) {
    for (const Shape& s : {Shape{2, 2, 8, 1, type}, Shape{3, 1, 16, 8, type}, Shape{7, 1, 8, 16, type},
                           Shape{6, 2, 32, 16, type}, Shape{4, 2, 64, 64, type}, Shape{2, 1, 80, 128, type},
                           Shape{4, 2, 128, 16, type}, Shape{2, 1, 256, 48, type}, Shape{1, 1, 100, 5, type}}) {
      for (const std::int64_t length : {1, 17, 64, 65, 150}) {
        const Prompt prompt(s, length, 100);
        EXPECT_TRUE(near(in_chunks(ops(), 2, prompt, length), expected_output(prompt), tolerance(type)))
            << "heads " << s.num_heads << ":" << s.num_kv_heads << " dim " << s.head_dim << " block " << s.block_size
            << " length " << length << " type " << int(type);
      }
    }
  }
}

TEST_P(AttentionTest, LongContextsMatchTheOracle) {
  for (const KvType type : kAllTypes) {
    const Prompt prompt({3, 1, 16, 16, type}, 1100, 7);
    EXPECT_TRUE(
        near(in_chunks(ops(), 2, prompt, 1100), in_chunks(ops_of(Isa::kPortable), 2, prompt, 1100), tolerance(type)));
  }
}

TEST_P(AttentionTest, ChunksThreadsAndBlockSizesChangeNoBit) {
  for (const KvType type : kAllTypes) {
    for (const Shape& s : {Shape{6, 2, 32, 16, type}, Shape{7, 1, 64, 1, type}, Shape{3, 3, 80, 64, type}}) {
      Prompt prompt(s, 140, 31);
      const auto whole = in_chunks(ops(), 1, prompt, prompt.length);
      for (const int threads : {1, 2, 3}) {
        for (const std::int64_t chunk : {1, 7, 64, 100}) {
          EXPECT_TRUE(bit_equal(in_chunks(ops(), threads, prompt, chunk), whole))
              << "dim " << s.head_dim << " chunk " << chunk << " threads " << threads << " type " << int(type);
        }
      }
      for (const std::int32_t block_size : {1, 8, 128}) {
        Shape other = s;
        other.block_size = block_size;
        EXPECT_TRUE(bit_equal(in_chunks(ops(), 2, Prompt(other, 140, 31), 60), whole)) << "block size " << block_size;
      }
    }
  }
}

TEST_P(AttentionTest, SharedPartitionsChangeNoBit) {
  for (const KvType type : kAllTypes) {
    const Prompt prompt({4, 2, 16, 16, type}, 1101, 13);
    const auto whole = in_chunks(ops(), 1, prompt, prompt.length);
    ThreadTeam team(4);  // few heads, several partitions: threads share them
    const Cache cache(prompt.shape, prompt.num_blocks());
    std::vector<float> out(whole.size(), poison());
    step(ops(), team, prompt, 0, 1000, cache, out.data());
    for (std::int64_t position = 1000; position < 1100; position += 20) {
      step(ops(), team, prompt, position, position + 20, cache, out.data());
    }
    step(ops(), team, prompt, 1100, 1101, cache, out.data());
    EXPECT_TRUE(bit_equal(out, whole)) << "type " << int(type);
  }
}

TEST_P(AttentionTest, ABatchChangesNoBit) {
  const Shape s{6, 2, 64, 16, KvType::kBf16};
  const Prompt a(s, 130, 41, 0);
  const Prompt b(s, 77, 51, 20);
  const Prompt c(s, 1, 61, 40);
  const auto alone_a = in_chunks(ops(), 1, a, 130);
  ThreadTeam team(2);
  const Cache cache(s, 64);
  std::vector<float> history(alone_a.size());
  step(ops(), team, a, 0, 129, cache, history.data());
  std::vector<float> history_b(static_cast<std::size_t>(b.length * b.q_width()));
  step(ops(), team, b, 0, 30, cache, history_b.data());
  // One step: a decodes its last token, b goes on with a chunk of 47, c starts. Rows have a stride of their own.
  const std::int64_t rows = 1 + 47 + 1;
  const std::int64_t ldq = a.q_width() + 16;
  const std::int64_t ldk = a.kv_width() + 8;
  std::vector<float> q(static_cast<std::size_t>(rows * ldq), poison());
  std::vector<float> k(static_cast<std::size_t>(rows * ldk), poison());
  std::vector<float> v = k;
  const auto put = [&](const Prompt& prompt, std::int64_t from, std::int64_t row) {
    std::copy_n(prompt.q.data() + from * prompt.q_width(), prompt.q_width(), q.data() + row * ldq);
    std::copy_n(prompt.k.data() + from * prompt.kv_width(), prompt.kv_width(), k.data() + row * ldk);
    std::copy_n(prompt.v.data() + from * prompt.kv_width(), prompt.kv_width(), v.data() + row * ldk);
  };
  put(a, 129, 0);
  for (std::int64_t i = 0; i < 47; ++i) put(b, 30 + i, 1 + i);
  put(c, 0, 48);
  const std::vector<AttentionSequence> sequences = {
      {0, 1, 129, a.block_table}, {1, 47, 30, b.block_table}, {48, 1, 0, c.block_table}};
  ops().store_kv(team, sequences, k.data(), ldk, v.data(), ldk, cache.ranks());
  std::vector<float> out(static_cast<std::size_t>(rows * ldq), poison());
  ops().attention(team, sequences, q.data(), ldq, s.num_heads / s.num_kv_heads, a.scale(), cache.ranks(), out.data(),
                  ldq);
  const auto row_of = [&](const std::vector<float>& from, std::int64_t row, std::int64_t stride) {
    return std::vector<float>(from.data() + row * stride, from.data() + row * stride + a.q_width());
  };
  EXPECT_TRUE(bit_equal(row_of(out, 0, ldq), row_of(alone_a, 129, a.q_width())));
  const auto alone_b = in_chunks(ops(), 1, b, 77);
  for (std::int64_t i = 0; i < 47; ++i) {
    EXPECT_TRUE(bit_equal(row_of(out, 1 + i, ldq), row_of(alone_b, 30 + i, a.q_width()))) << i;
  }
  EXPECT_TRUE(bit_equal(row_of(out, 48, ldq), row_of(in_chunks(ops(), 1, c, 1), 0, a.q_width())));
}

TEST_P(AttentionTest, ALaterNaNDoesNotReachEarlierRows) {
  for (const KvType type : kAllTypes) {
    Prompt prompt({4, 2, 64, 16, type}, 90, 71);
    const auto clean = in_chunks(ops(), 2, prompt, 90);
    for (std::int64_t i = 0; i < prompt.kv_width(); ++i) {
      prompt.k[static_cast<std::size_t>(81 * prompt.kv_width() + i)] = poison();
      prompt.v[static_cast<std::size_t>(81 * prompt.kv_width() + i)] = poison();
    }
    const auto found = in_chunks(ops(), 2, prompt, 90);
    const auto before = static_cast<std::ptrdiff_t>(81 * prompt.q_width());
    EXPECT_TRUE(bit_equal({found.begin(), found.begin() + before}, {clean.begin(), clean.begin() + before}));
    EXPECT_TRUE(std::all_of(found.begin() + before, found.end(), [](float value) { return std::isnan(value); }));
  }
}

TEST_P(AttentionTest, StoredKvIsRoundedToNearestEven) {
  ThreadTeam team(1);
  const Shape s{1, 1, 24, 4, KvType::kBf16};
  const Prompt prompt(s, 6, 3);
  const Cache cache(s, 2);
  const AttentionSequence sequence{0, 6, 0, prompt.block_table};
  ops().store_kv(team, {&sequence, 1}, prompt.k.data(), 24, prompt.v.data(), 24, cache.ranks());
  for (std::int64_t token = 0; token < 6; ++token) {
    const auto block = static_cast<std::size_t>(prompt.block_table[static_cast<std::size_t>(token / 4)]);
    for (std::int64_t i = 0; i < 24; ++i) {
      for (const bool value : {false, true}) {
        const std::byte* at = cache.kv().data + block * cache.kv().block_stride + (value ? cache.kv().kv_stride : 0) +
                              static_cast<std::size_t>((token % 4 * 24 + i) * 2);
        std::uint16_t bits = 0;
        std::memcpy(&bits, at, 2);
        const float from = (value ? prompt.v : prompt.k)[static_cast<std::size_t>(token * 24 + i)];
        ASSERT_EQ(bits, to_bf16(from).bits) << "token " << token << " dim " << i;
      }
    }
  }
}

TEST_P(AttentionTest, Int8IsStoredAsSpecified) {
  ThreadTeam team(1);
  const Shape s{1, 1, 24, 4, KvType::kInt8};
  Prompt prompt(s, 6, 3);
  for (int i = 0; i < 24; ++i) prompt.k[24 + i] = 0.0F;  // token 1: nothing but zeros
  prompt.k[2 * 24 + 5] = poison();                       // token 2: broken
  const Cache cache(s, 2);
  const AttentionSequence sequence{0, 6, 0, prompt.block_table};
  ops().store_kv(team, {&sequence, 1}, prompt.k.data(), 24, prompt.v.data(), 24, cache.ranks());
  for (std::size_t token = 0; token < 6; ++token) {
    const std::byte* at =
        cache.kv().data + prompt.block_table[token / 4] * cache.kv().block_stride + token % 4 * vector_bytes(s);
    float scale = -1.0F;
    std::memcpy(&scale, at + 24, sizeof(scale));
    if (token == 2) {
      EXPECT_TRUE(std::isnan(scale));
      continue;
    }
    const float* from = prompt.k.data() + token * 24;
    float most = 0;
    for (int i = 0; i < 24; ++i) most = std::max(most, std::fabs(from[i]));
    EXPECT_EQ(scale, most / 127.0F);
    for (int i = 0; i < 24; ++i) {
      const float expected = scale == 0.0F ? 0.0F : std::nearbyint(from[i] / scale);
      EXPECT_EQ(static_cast<float>(static_cast<std::int8_t>(at[i])), expected) << "token " << token << " dim " << i;
    }
  }
}

// A rank may hold whole groups of query heads (6:2 over 2), parts of them (6:2 over 3 and 6, 12:2 over 4), or parts of
// two groups at once (12:2 over 3, in the middle).
TEST_P(AttentionTest, RanksChangeNoBit) {
  for (const KvType type : kAllTypes) {
    for (const Shape& s : {Shape{6, 2, 32, 16, type}, Shape{12, 2, 16, 8, type}, Shape{12, 12, 8, 16, type}}) {
      const Prompt prompt(s, 140, 31);
      const auto one = in_chunks(ops(), 1, prompt, prompt.length);
      for (const std::int32_t num_ranks : {2, 3, 4, 6, 12}) {
        if (s.num_heads % num_ranks != 0) continue;
        for (const int threads : {1, 2, 3, 4}) {
          EXPECT_TRUE(bit_equal(in_chunks(ops(), threads, prompt, 60, num_ranks), one))
              << "heads " << s.num_heads << ":" << s.num_kv_heads << " ranks " << num_ranks << " threads " << threads
              << " type " << int(type);
        }
      }
    }
  }
}

TEST_P(AttentionTest, RanksThatSharePartitionsChangeNoBit) {
  for (const KvType type : kAllTypes) {
    const Prompt prompt({4, 2, 16, 16, type}, 1101, 13);
    const auto one = in_chunks(ops(), 1, prompt, prompt.length);
    for (const std::int32_t num_ranks : {2, 4}) {
      for (const int threads : {3, 8}) {
        ThreadTeam team(threads);
        const Cache cache(prompt.shape, prompt.num_blocks(), num_ranks);
        std::vector<float> out(one.size(), poison());
        step(ops(), team, prompt, 0, 1100, cache, out.data());
        step(ops(), team, prompt, 1100, 1101, cache, out.data());
        EXPECT_TRUE(bit_equal(out, one)) << num_ranks << " ranks, " << threads << " threads, type " << int(type);
      }
    }
  }
}

TEST_P(AttentionTest, EachRankStoresItsHeads) {
  const Shape s{12, 2, 16, 8, KvType::kInt8};
  const Prompt prompt(s, 90, 17);
  const AttentionSequence sequence{0, 90, 0, prompt.block_table};
  const Cache whole(s, prompt.num_blocks());
  const auto store = [&](int threads, const Cache& cache) {
    ThreadTeam team(threads);
    ops().store_kv(team, {&sequence, 1}, prompt.k.data(), prompt.kv_width(), prompt.v.data(), prompt.kv_width(),
                   cache.ranks());
  };
  store(1, whole);
  for (const int threads : {1, 3, 4}) {
    const Cache cache(s, prompt.num_blocks(), 3);
    store(threads, cache);
    for (const PagedKv& rank : cache.ranks()) {
      for (std::int32_t block = 0; block < prompt.num_blocks(); ++block) {
        for (const std::size_t value : {0U, 1U}) {
          for (std::int32_t head = 0; head < rank.num_kv_heads; ++head) {
            const auto at = [&](const PagedKv& kv, std::int32_t local) {
              return kv.data + static_cast<std::size_t>(block) * kv.block_stride + value * kv.kv_stride +
                     static_cast<std::size_t>(local) * kv.head_stride;
            };
            EXPECT_EQ(std::memcmp(at(rank, head), at(whole.kv(), rank.first_kv_head + head), rank.head_stride), 0)
                << "first head " << rank.first_head << " block " << block << " threads " << threads;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionTest, ::testing::ValuesIn(isas_of_this_cpu()), isa_test_name);

}  // namespace
}  // namespace tandem::kernels
