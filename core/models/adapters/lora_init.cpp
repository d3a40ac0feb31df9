#include "core/models/adapters/lora_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "core/checkpoint/read/gather_shards.h"

namespace concord {
namespace {

using at::Tensor;

constexpr std::string_view kInner = ".lora_A.weight", kOuter = ".lora_B.weight";

// ---------------------------------------------------------------------------------------------------- factorisations

struct Factors {
  Tensor u, s, vt;
};

Factors largest(const Tensor& w, int64_t rank) {
  const auto [u, s, vt] = at::linalg_svd(w, /*full_matrices=*/false);
  return {u.narrow(1, 0, rank), s.narrow(0, 0, rank), vt.narrow(0, 0, rank)};
}

Tensor orthonormal(const Tensor& x) { return std::get<0>(at::linalg_qr(x)); }

// torch.svd_lowrank.
Factors largest_by_iteration(const Tensor& w, int64_t rank, int64_t iterations, uint64_t seed) {
  if (w.size(0) < w.size(1)) {
    const Factors turned = largest_by_iteration(w.t(), rank, iterations, seed);
    return {turned.vt.t(), turned.s, turned.u.t()};
  }
  Tensor q =
      orthonormal(at::matmul(w, at::randn({w.size(1), rank}, at::detail::createCPUGenerator(seed), w.options())));
  for (int64_t i = 0; i < iterations; ++i) q = orthonormal(at::matmul(w, orthonormal(at::matmul(w.t(), q))));
  const auto [u, s, vt] = at::linalg_svd(at::matmul(q.t(), w), /*full_matrices=*/false);
  return {at::matmul(q, u), s, vt};
}

// ------------------------------------------------------------------------------------------------------ of the layers

struct Module {
  std::string name;
  Parameter* b;
  int64_t a_row, weight_row;  // where its rows begin on this rank
  LowRankShape shape;
};
struct Layer {
  Parameter *weight, *a;
  std::vector<Module> modules;
};

std::string module_of(const std::string& tensor, std::string_view end) {
  const size_t prefix = std::string_view(kAdapterPrefix).size();
  return tensor.substr(prefix, tensor.size() - prefix - end.size());
}

// The rank's row at which |module| begins in the weight of its layer.
int64_t first_row(const ShardSpec& weight, const std::string& module, const ShardPlace& place) {
  if (weight.joined) return 0;
  const int64_t parts = weight.dims[0].cut ? place[*weight.dims[0].cut].count : 1;
  int64_t row = 0;
  for (const ShardSpec::Piece& piece : weight.pieces) {
    if (piece.name == module + ".weight") return row;
    row += piece.size / parts;
  }
  return 0;
}

std::vector<Layer> layers_of(std::span<Parameter* const> parameters, const AdapterModules& adapter,
                             const ShardPlace& place) {
  const auto find = [&](const std::string& name) {
    return *std::find_if(parameters.begin(), parameters.end(),
                         [&](const Parameter* p) { return p->spec.name == name; });
  };
  std::vector<Layer> layers;
  for (Parameter* a : parameters) {
    if (!a->adapter || !a->spec.name.ends_with(kInner)) continue;
    Layer& layer = layers.emplace_back(Layer{find(module_of(a->spec.name, kInner) + ".weight"), a, {}});
    std::vector<ShardSpec::Piece> pieces = a->spec.pieces;
    if (pieces.empty()) pieces.push_back({a->spec.name, a->spec.dims[0].size});
    int64_t row = 0;
    for (const ShardSpec::Piece& piece : pieces) {
      const std::string name = module_of(piece.name, kInner);
      layer.modules.push_back({name, find(kAdapterPrefix + name + std::string(kOuter)), row,
                               first_row(layer.weight->spec, name, place), adapter.find(name).value()});
      row += piece.size;
    }
  }
  return layers;
}

// This rank's part of the global tensors |whole|.
void scatter(const NamedTensors& whole, const ShardSpec& spec, const ShardPlace& place, const Tensor& part) {
  const Tensor own = at::zeros(part.sizes(), at::kFloat), flat = own.view({-1});
  for (const ShardRun& run : shard_runs(spec, place)) {
    const auto found = std::find_if(whole.begin(), whole.end(), [&](const auto& t) { return t.first == run.tensor; });
    const int64_t length = std::min(run.run_length, run.count);
    flat.narrow(0, run.local, run.count)
        .view({-1, length})
        .copy_(found->second.as_strided({run.count / length, length}, {run.run_stride, 1}, run.offset));
  }
  part.copy_(own);
}

// fp32 on all ranks of |group|, computed on one of them.
PairValues shared(ProcessGroup& group, int64_t root, const Tensor& weight, const std::string& init, LowRankShape shape,
                  uint64_t seed, c10::Device device) {
  PairValues pair{at::empty({shape.rank, weight.size(1)}, at::kFloat),
                  at::empty({weight.size(0), shape.rank}, at::kFloat)};
  if (group.rank() == root) pair = pair_from_weight(weight, init, shape, seed);
  for (Tensor* each : {&pair.a_ri, &pair.b_or}) {
    const Tensor there = each->contiguous().to(device);
    if (group.size() > 1) group.broadcast(there, root).wait();
    *each = there.to(at::kCPU);
  }
  return pair;
}

Tensor by_modules(const Parameter& a, const Tensor& first, const Tensor& second) {
  if (a.spec.pieces.empty()) return at::cat({first, second});
  std::vector<Tensor> parts;
  int64_t row = 0;
  for (const ShardSpec::Piece& piece : a.spec.pieces) {
    parts.push_back(first.narrow(0, row, piece.size));
    parts.push_back(second.narrow(0, row, piece.size));
    row += piece.size;
  }
  return at::cat(parts);
}

bool is_inner(const Parameter& parameter) { return parameter.spec.name.ends_with(kInner); }

// The inverse of in_file: the pair and its beginning.
std::pair<Tensor, Tensor> halves(const Parameter& own, const Tensor& read) {
  if (!is_inner(own)) {
    const int64_t rank = own.spec.dims[1].size;
    return {read.narrow(1, 0, rank), -read.narrow(1, rank, rank)};
  }
  std::vector<int64_t> ranks;
  for (const ShardSpec::Piece& piece : own.spec.pieces) ranks.push_back(piece.size);
  if (ranks.empty()) ranks.push_back(own.spec.dims[0].size);
  std::vector<Tensor> now, before;
  int64_t row = 0;
  for (const int64_t rank : ranks) {
    now.push_back(read.narrow(0, row, rank));
    before.push_back(read.narrow(0, row + rank, rank));
    row += 2 * rank;
  }
  return {at::cat(now), at::cat(before)};
}

}  // namespace

PairValues pair_from_weight(const Tensor& weight, const std::string& init, LowRankShape shape, uint64_t seed) {
  const at::NoGradGuard no_grad;
  if (shape.rank > std::min(weight.size(0), weight.size(1))) {
    throw ConfigError(
        fmt::format("init_lora_weights {}: a weight of [{}, {}] has no part of rank {}; choose a smaller "
                    "lora_rank, or other layers",
                    init, weight.size(0), weight.size(1), shape.rank));
  }
  const Tensor w = weight.to(at::kCPU, at::kFloat);
  if (init == "olora") {
    const auto [q, r] = at::linalg_qr(w);
    return {r.narrow(0, 0, shape.rank).contiguous(), q.narrow(1, 0, shape.rank).contiguous()};
  }
  const std::optional<int64_t> iterations = pissa_iterations(init);
  const auto [u, s, vt] = iterations ? largest_by_iteration(w, shape.rank, *iterations, seed) : largest(w, shape.rank);
  const Tensor root = (s / shape.scale).sqrt();
  return {(root.unsqueeze(1) * vt).contiguous(), (u * root).contiguous()};
}

void LoraInit::compute(std::span<Parameter* const> parameters, const AdapterModules& adapter, ParallelContext& context,
                       int64_t seed) {
  const at::NoGradGuard no_grad;
  const ShardPlace place = shard_place(context.layout(), context.rank());
  ProcessGroup& replicas = context.group(GroupKind::tp_dp_cp);
  int64_t turn = 0;
  for (const Layer& layer : layers_of(parameters, adapter, place)) {
    const NamedTensors weights = gather_shards(layer.weight->used(), layer.weight->spec, context);
    NamedTensors inner;
    for (const Module& module : layer.modules) {
      const auto own = std::find_if(weights.begin(), weights.end(),
                                    [&](const auto& t) { return t.first == module.name + ".weight"; });
      const PairValues pair =
          shared(replicas, turn++ % replicas.size(), own->second, adapter.config().init_lora_weights, module.shape,
                 static_cast<uint64_t>(seed) ^ stable_hash(module.name), context.torch_device());
      inner.emplace_back(kAdapterPrefix + module.name + std::string(kInner), pair.a_ri);
      scatter({{module.b->spec.name, pair.b_or}}, module.b->spec, place, module.b->value);
      values_[module.b] = module.b->value.detach().clone();
    }
    scatter(inner, layer.a->spec, place, layer.a->value);
    values_[layer.a] = layer.a->value.detach().clone();
  }
  subtract(parameters, adapter, place);
}

void LoraInit::subtract(std::span<Parameter* const> parameters, const AdapterModules& adapter,
                        const ShardPlace& place) {
  const at::NoGradGuard no_grad;
  const auto wide = [](const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); };
  for (const Layer& layer : layers_of(parameters, adapter, place)) {
    const Tensor a = wide(values_.at(layer.a));
    for (const Module& module : layer.modules) {
      const Tensor b = wide(values_.at(module.b));
      const Tensor rows = layer.weight->value.narrow(0, module.weight_row, b.size(0));
      rows.copy_(wide(rows) - at::matmul(b * module.shape.scale, a.narrow(0, module.a_row, module.shape.rank)));
    }
  }
}

Parameter LoraInit::room_for(const Parameter& own) {
  Parameter result = own;
  result.before_use = {};
  const size_t dim = is_inner(own) ? 0 : 1;
  result.spec.dims[dim].size *= 2;
  if (is_inner(own)) {
    for (ShardSpec::Piece& piece : result.spec.pieces) piece.size *= 2;
  }
  std::vector<int64_t> shape = own.value.sizes().vec();
  shape[dim] *= 2;
  result.value = at::empty(shape, own.value.options().requires_grad(false));
  return result;
}

Parameter LoraInit::in_file(const Parameter& own) const {
  const at::NoGradGuard no_grad;
  Parameter result = room_for(own);
  const Tensor now = own.used().detach(), before = values_.at(&own);
  result.value = is_inner(own) ? by_modules(own, now, before) : at::cat({now, -before}, 1);
  return result;
}

void LoraInit::take(const Parameter& read, Parameter& own) {
  const at::NoGradGuard no_grad;
  const auto [now, before] = halves(own, read.value);
  own.value.copy_(now);
  if (!values_.contains(&own)) values_[&own] = before.clone();
}

}  // namespace concord
