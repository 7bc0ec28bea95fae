// SPDX-License-Identifier: Apache-2.0
// Attention over paged KV of every implementation: against softmax in double, chunked against whole, batched against
// alone, and with NaN in every slot that no query may see.
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

/// One layer of KV memory, full of NaN, laid out [block][K|V][kv head][token][dim] with a gap after each block.
class Cache {
 public:
  Cache(const Shape& shape, std::int32_t num_blocks) : memory_(bytes(shape) * static_cast<std::size_t>(num_blocks)) {
    if (shape.type == KvType::kBf16) {
      const bf16_t nan = to_bf16(poison());
      for (std::size_t i = 0; i < memory_.size(); i += 2) std::memcpy(memory_.data() + i, &nan, 2);
    } else {
      const float nan = poison();
      for (std::size_t i = 0; i < memory_.size(); i += 4) std::memcpy(memory_.data() + i, &nan, 4);
    }
    kv_.data = memory_.data();
    kv_.block_stride = bytes(shape);
    kv_.head_stride = head_bytes(shape);
    kv_.kv_stride = kv_.head_stride * static_cast<std::size_t>(shape.num_kv_heads);
    kv_.block_size = shape.block_size;
    kv_.num_kv_heads = shape.num_kv_heads;
    kv_.head_dim = shape.head_dim;
    kv_.type = shape.type;
  }
  const PagedKv& kv() const { return kv_; }

 private:
  static std::size_t head_bytes(const Shape& shape) {
    return static_cast<std::size_t>(shape.block_size) * static_cast<std::size_t>(shape.head_dim) *
           (shape.type == KvType::kBf16 ? 2 : 4);
  }
  static std::size_t bytes(const Shape& shape) {
    return 2 * head_bytes(shape) * static_cast<std::size_t>(shape.num_kv_heads) + 64;
  }
  std::vector<std::byte> memory_;
  PagedKv kv_;
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
          const PagedKv& kv, float* out) {
  const AttentionSequence sequence{0, end - begin, begin, prompt.block_table};
  ops.store_kv(team, {&sequence, 1}, prompt.k.data() + begin * prompt.kv_width(), prompt.kv_width(),
               prompt.v.data() + begin * prompt.kv_width(), prompt.kv_width(), kv);
  ops.attention(team, {&sequence, 1}, prompt.q.data() + begin * prompt.q_width(), prompt.q_width(),
                prompt.shape.num_heads, prompt.scale(), kv, out + begin * prompt.q_width(), prompt.q_width());
}

std::vector<float> in_chunks(const Ops& ops, int threads, const Prompt& prompt, std::int64_t chunk) {
  ThreadTeam team(threads);
  const Cache cache(prompt.shape, prompt.num_blocks());
  std::vector<float> out(static_cast<std::size_t>(prompt.length * prompt.q_width()), poison());
  for (std::int64_t begin = 0; begin < prompt.length; begin += chunk) {
    step(ops, team, prompt, begin, std::min(begin + chunk, prompt.length), cache.kv(), out.data());
  }
  return out;
}

std::vector<float> expected_output(const Prompt& prompt) {
  const Shape& s = prompt.shape;
  const bool bf16 = s.type == KvType::kBf16;
  const auto stored = [&](float value) { return static_cast<double>(bf16 ? to_float(to_bf16(value)) : value); };
  std::vector<float> out(static_cast<std::size_t>(prompt.length * prompt.q_width()));
  const std::int64_t group = s.num_heads / s.num_kv_heads;
  for (std::int64_t row = 0; row < prompt.length; ++row) {
    for (std::int64_t head = 0; head < s.num_heads; ++head) {
      const float* q = prompt.q.data() + row * prompt.q_width() + head * s.head_dim;
      const std::int64_t kv_column = head / group * s.head_dim;
      std::vector<double> score;
      for (std::int64_t j = 0; j <= row; ++j) {
        const float* k = prompt.k.data() + j * prompt.kv_width() + kv_column;
        double dot = 0;
        for (int i = 0; i < s.head_dim; ++i) dot += static_cast<double>(q[i]) * stored(k[i]);
        score.push_back(dot * prompt.scale());
      }
      const double most = *std::max_element(score.begin(), score.end());
      double total = 0;
      for (double& value : score) total += value = std::exp(value - most);
      for (int i = 0; i < s.head_dim; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j <= row; ++j) {
          sum += score[static_cast<std::size_t>(j)] *
                 stored(prompt.v[static_cast<std::size_t>(j * prompt.kv_width() + kv_column + i)]);
        }
        out[static_cast<std::size_t>(row * prompt.q_width() + head * s.head_dim + i)] = static_cast<float>(sum / total);
      }
    }
  }
  return out;
}

double tolerance(KvType type) { return type == KvType::kBf16 ? 1e-2 : 1e-5; }

class AttentionTest : public EveryIsa {};

TEST_P(AttentionTest, MatchesSoftmaxInDouble) {
  for (const KvType type : {KvType::kBf16, KvType::kF32}) {
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
  for (const KvType type : {KvType::kBf16, KvType::kF32}) {
    const Prompt prompt({3, 1, 16, 16, type}, 1100, 7);
    EXPECT_TRUE(
        near(in_chunks(ops(), 2, prompt, 1100), in_chunks(ops_of(Isa::kPortable), 2, prompt, 1100), tolerance(type)));
  }
}

TEST_P(AttentionTest, ChunksThreadsAndBlockSizesChangeNoBit) {
  for (const KvType type : {KvType::kBf16, KvType::kF32}) {
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
  for (const KvType type : {KvType::kBf16, KvType::kF32}) {
    const Prompt prompt({4, 2, 16, 16, type}, 1101, 13);
    const auto whole = in_chunks(ops(), 1, prompt, prompt.length);
    ThreadTeam team(4);  // few heads, several partitions: threads share them
    const Cache cache(prompt.shape, prompt.num_blocks());
    std::vector<float> out(whole.size(), poison());
    step(ops(), team, prompt, 0, 1000, cache.kv(), out.data());
    for (std::int64_t position = 1000; position < 1100; position += 20) {
      step(ops(), team, prompt, position, position + 20, cache.kv(), out.data());
    }
    step(ops(), team, prompt, 1100, 1101, cache.kv(), out.data());
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
  step(ops(), team, a, 0, 129, cache.kv(), history.data());
  std::vector<float> history_b(static_cast<std::size_t>(b.length * b.q_width()));
  step(ops(), team, b, 0, 30, cache.kv(), history_b.data());
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
  ops().store_kv(team, sequences, k.data(), ldk, v.data(), ldk, cache.kv());
  std::vector<float> out(static_cast<std::size_t>(rows * ldq), poison());
  ops().attention(team, sequences, q.data(), ldq, s.num_heads, a.scale(), cache.kv(), out.data(), ldq);
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
  for (const KvType type : {KvType::kBf16, KvType::kF32}) {
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
  ops().store_kv(team, {&sequence, 1}, prompt.k.data(), 24, prompt.v.data(), 24, cache.kv());
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

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionTest, ::testing::ValuesIn(isas_of_this_cpu()), isa_test_name);

}  // namespace
}  // namespace tandem::kernels
