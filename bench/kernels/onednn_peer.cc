// SPDX-License-Identifier: Apache-2.0
#include "onednn_peer.h"

#include <omp.h>

#include <unordered_map>
#include <vector>

#include "dnnl.hpp"

namespace tandem::bench {

struct OneDnnMatmul::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  dnnl::memory x, w, y;
  std::unordered_map<int, dnnl::memory> arguments;
};

OneDnnMatmul::OneDnnMatmul(PeerType type, std::int64_t rows, std::int64_t k, std::int64_t n, int threads)
    : state_(std::make_unique<State>()) {
  using Data = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;
  omp_set_num_threads(threads);
  State& state = *state_;
  const Data data = type == PeerType::kF32 ? Data::f32 : (type == PeerType::kBf16 ? Data::bf16 : Data::s8);
  dnnl::primitive_attr attributes;
  if (type == PeerType::kInt8)
    attributes.set_output_scales(1 << 1, std::vector<float>(static_cast<std::size_t>(n), 0.01F));
  const dnnl::matmul::desc description(dnnl::memory::desc({rows, k}, data, Tag::ab),
                                       dnnl::memory::desc({k, n}, data, Tag::any),
                                       dnnl::memory::desc({rows, n}, Data::f32, Tag::ab));
  const dnnl::matmul::primitive_desc primitive(description, attributes, state.engine);
  state.matmul = dnnl::matmul(primitive);
  state.x = dnnl::memory(primitive.src_desc(), state.engine);
  state.w = dnnl::memory(primitive.weights_desc(), state.engine);
  state.y = dnnl::memory(primitive.dst_desc(), state.engine);
  dnnl::memory plain(dnnl::memory::desc({k, n}, Data::f32, Tag::ab), state.engine);
  auto* weights = static_cast<float*>(plain.get_data_handle());
  for (std::int64_t i = 0; i < k * n; ++i) weights[i] = static_cast<float>(i * 7919 % 255 - 127);
  dnnl::reorder(plain, state.w).execute(state.stream, plain, state.w);
  dnnl::memory plain_x(dnnl::memory::desc({rows, k}, Data::f32, Tag::ab), state.engine);
  auto* activations = static_cast<float*>(plain_x.get_data_handle());
  for (std::int64_t i = 0; i < rows * k; ++i) activations[i] = static_cast<float>(i * 104729 % 255 - 127);
  dnnl::reorder(plain_x, state.x).execute(state.stream, plain_x, state.x);
  state.stream.wait();
  state.arguments = {{DNNL_ARG_SRC, state.x}, {DNNL_ARG_WEIGHTS, state.w}, {DNNL_ARG_DST, state.y}};
}

OneDnnMatmul::~OneDnnMatmul() = default;

void OneDnnMatmul::run() {
  state_->matmul.execute(state_->stream, state_->arguments);
  state_->stream.wait();
}

}  // namespace tandem::bench
