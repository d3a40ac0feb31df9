// The parameters of a small model, one of each kind, for tests that read and write weights.
#pragma once

#include <ATen/ops/full.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/stable_hash.h"
#include "core/checkpoint/hf_plan.h"
#include "core/parallel/parameter.h"
#include "core/safetensors/testing/files.h"
#include "core/safetensors/writer.h"

namespace concord::testing {

inline std::vector<ShardSpec> layer_specs(int64_t layer) {
  const std::string name = "model.layers." + std::to_string(layer);
  const std::vector<GroupKind> cut = {GroupKind::dp_cp}, whole = {GroupKind::tp, GroupKind::dp_cp};
  ShardSpec qkv{.name = name + ".qkv", .dims = {{48, ShardAxis::tp}, {24}}, .replicated_over = cut};
  qkv.pieces = {{name + ".q", 24}, {name + ".k", 12}, {name + ".v", 12}};
  ShardSpec experts{.name = name + ".experts",
                    .dims = {{4, ShardAxis::ep}, {32, ShardAxis::etp}, {24}},
                    .fused_dim = 1,
                    .stacked = true,
                    .replicated_over = {GroupKind::edp}};
  experts.pieces = {{name + ".experts.{}.gate", 16}, {name + ".experts.{}.up", 16}};
  return {{.name = name + ".norm", .dims = {{24}}, .replicated_over = whole},
          qkv,
          {.name = name + ".o", .dims = {{24}, {48, ShardAxis::tp}}, .replicated_over = cut},
          experts};
}

// Two layers of each stage, with an embedding of 50 rows that are padded to 64; tied, so the last stage has it too.
inline std::vector<ShardSpec> stage_specs(int64_t stage, int64_t stages, int64_t layers = 4) {
  const ShardSpec embedding{.name = "model.embed_tokens.weight",
                            .dims = {{50, ShardAxis::tp, 64}, {24}},
                            .replicated_over = {GroupKind::dp_cp}};
  std::vector<ShardSpec> specs;
  if (stage == 0) specs.push_back(embedding);
  for (int64_t layer = stage * layers / stages; layer < (stage + 1) * layers / stages; ++layer) {
    for (ShardSpec& spec : layer_specs(layer)) specs.push_back(std::move(spec));
  }
  if (stage == stages - 1 && stages > 1) specs.push_back(embedding);
  return specs;
}

// Parameters filled with 777. The list points into the parameters.
struct SampleParameters {
  std::vector<Parameter> parameters;
  std::vector<Parameter*> list;

  SampleParameters(const std::vector<ShardSpec>& specs, const ShardPlace& place, at::ScalarType type = at::kFloat,
                   at::Device device = at::kCPU) {
    for (const ShardSpec& spec : specs) {
      at::Tensor value = at::full(local_shape(spec, place), 777.0, at::TensorOptions(device).dtype(type));
      value.requires_grad_();
      parameters.push_back({.spec = spec, .init = constant_init(0), .value = value});
    }
    for (Parameter& parameter : parameters) list.push_back(&parameter);
  }
};

// Returns element |index| of a tensor: small, with few bits, so that it is exact in every float type.
inline float sample_value(const std::string& tensor, int64_t index) {
  return static_cast<float>((stable_hash(tensor) % 64 + static_cast<uint64_t>(index) * 7) % 251) / 8;
}

// Writes a file with all tensors of |specs| in fp32.
inline void write_sample(const std::string& path, const std::vector<ShardSpec>& specs) {
  std::vector<safetensors::TensorShape> shapes;
  for (const ShardSpec& spec : specs) {
    for (const GlobalTensor& tensor : global_tensors(spec))
      shapes.push_back({tensor.name, safetensors::DType::kF32, tensor.shape});
  }
  safetensors::Writer writer(path, shapes);
  for (const safetensors::TensorInfo& tensor : writer.plan().tensors) {
    std::vector<float> values;
    for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(sample_value(tensor.name, i));
    writer.write(tensor.name, 0, std::as_bytes(std::span(values)));
  }
  writer.finish();
}

}  // namespace concord::testing
