// SPDX-License-Identifier: Apache-2.0
#include "transfer/landing.h"

#include <algorithm>

#include "kv/convert.h"

namespace tandem::transfer {

void spread(const KvView& arrived, const MutableKvView& home, const Extent& extent) {
  const kv::Layout& from = arrived.shards.common();
  const kv::Layout& to = home.shards.common();
  for (std::int32_t head = 0; head < home.shards.num_heads(); ++head) {
    const Shards::Holder& source = arrived.shards.holders(head).front();
    for (const Shards::Holder& holder : home.shards.holders(head)) {
      if (arrived.memory == home.memory && holder.rank == source.rank) continue;
      for (std::int32_t layer = extent.first_layer; layer < extent.end_layer; ++layer) {
        for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
          for (std::int64_t token = extent.first_token; token < extent.end_token;) {
            const std::int64_t next = std::min({extent.end_token, (token / from.block_size + 1) * from.block_size,
                                                (token / to.block_size + 1) * to.block_size});
            kv::convert_vectors(from.element, arrived.at(source, layer, k_or_v, token), to.element,
                                home.at(holder, layer, k_or_v, token), static_cast<std::size_t>(next - token),
                                to.head_dim);
            token = next;
          }
        }
      }
    }
  }
}

}  // namespace tandem::transfer
