// Rotary positions on Ascend: torch_npu's fused rotation of heads (CANN's RotaryPositionEmbedding) and, for the sizes
// that it supports, of queries and keys inside the output of a projection (RopeWithSinCosCache). Both take heads and
// factors of one type, so the factors of 16-bit heads are rounded to 16 bits, as in transformers and Megatron. Inputs
// beyond their limits use the reference.
//
// s positions, b batch, t tokens, q heads, n size of a head, r angles: the first 2 r elements of a head are rotated.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/split_with_sizes_copy.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// CANN's documentation of RotaryPositionEmbedding: the rotated part of a head, the heads, and the batch.
constexpr int64_t kMaxRotated = 894, kMaxRopeHeads = 999, kMaxRopeBatch = 999;

bool has_fused_rope(const Tensor& x, const Tensor& cos) {
  const auto type = x.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  return is_known && x.numel() > 0 && (x.dim() == 3 || x.dim() == 4) && cos.dim() == x.dim() - 1 &&
         2 * cos.size(-1) <= kMaxRotated && x.size(-2) <= kMaxRopeHeads && (x.dim() == 3 || x.size(1) <= kMaxRopeBatch);
}

// The factors of one rotation, in the type of the heads: cos and sin [s, b, 1, n] for both halves of a head; or a table
// [rows, 2 r] of cos and sin, and the row of each token.
using Factors = std::array<Tensor, 2>;

Factors make_factors(const Tensor& cos, const Tensor& sin, at::ScalarType type) {
  const auto both = [type](const Tensor& x) {
    const Tensor four = x.dim() == 3 ? x : x.unsqueeze(1);
    return at::cat({four, four}, -1).unsqueeze(-2).to(type);
  };
  return {both(cos), both(sin)};
}

Factors make_table(const Tensor& cos, const Tensor& sin, at::ScalarType type, int64_t batch) {
  const Tensor table = at::cat({cos, sin}, -1).flatten(0, -2).to(type);
  const Tensor rows = at::arange(table.size(0), table.options().dtype(at::kLong));
  const bool repeats = cos.dim() == 3 && cos.size(1) != batch;
  return {table, repeats ? rows.unsqueeze(1).expand({rows.size(0), batch}).flatten() : rows};
}

// The factors that were made last, in each direction and on each stream. All layers of a pass have the same angles, or
// two kinds of them take turns. An entry refers to the storage of its angles without keeping it alive, and is not used
// once that is freed or written to. A tensor of inference mode does not count its writes, so its factors are not kept.
class FactorCache {
 public:
  // A table if |batch| is not 0.
  Factors get(const Tensor& cos, const Tensor& sin, at::ScalarType type, bool back, int64_t batch) {
    const auto make = [&] {
      const Tensor turned = back ? -sin : sin;
      return batch == 0 ? make_factors(cos, turned, type) : make_table(cos, turned, type, batch);
    };
    if (cos.is_inference() || sin.is_inference()) return make();
    const c10::Stream stream = c10::impl::VirtualGuardImpl(cos.device().type()).getStream(cos.device());
    const std::lock_guard lock(mutex_);
    std::vector<Entry>& entries = entries_.at(back ? 1 : 0);
    for (const Entry& each : entries) {
      const bool is_same = each.stream == stream && each.cos.is(cos) && each.sin.is(sin) && each.batch == batch;
      if (is_same && each.factors[0].scalar_type() == type) return each.factors;
    }
    if (entries.size() == kMaxEntries) entries.erase(entries.begin());
    entries.push_back({Source(cos), Source(sin), stream, batch, make()});
    return entries.back().factors;
  }

 private:
  static constexpr size_t kMaxEntries = 2;

  struct Source {
    explicit Source(const Tensor& x)
        : storage(x.storage().getWeakStorageImpl()),
          offset(x.storage_offset()),
          sizes(x.sizes().vec()),
          strides(x.strides().vec()),
          version(x._version()) {}
    bool is(const Tensor& x) const {
      return storage.lock().get() == x.storage().unsafeGetStorageImpl() && offset == x.storage_offset() &&
             x.sizes() == sizes && x.strides() == strides && version == x._version();
    }

    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t offset;
    std::vector<int64_t> sizes, strides;
    int64_t version;
  };
  struct Entry {
    Source cos, sin;
    c10::Stream stream;
    int64_t batch;
    Factors factors;
  };

  std::mutex mutex_;
  std::array<std::vector<Entry>, 2> entries_;
};

// Never destroyed: nothing may be freed once the vendor's library is gone.
FactorCache& factor_cache() {
  static auto& cache = *new FactorCache;
  return cache;
}

const std::optional<c10::OperatorHandle>& rotary_mul() {
  static const auto op = find("npu_rotary_mul");
  return op;
}

// Returns |x|, of which all elements are rotated. Rotating back is rotating by the negative angle.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const auto [r1, r2] = factor_cache().get(cos, sin, x.scalar_type(), back, 0);
  const Tensor x_sbqn = x.dim() == 4 ? x : x.unsqueeze(1);
  const Tensor y = call(*rotary_mul(), {{"input", x_sbqn.contiguous()}, {"r1", r1}, {"r2", r2}}).at(0).toTensor();
  return x.dim() == 4 ? y : y.squeeze(1);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  if (!rotary_mul() || !has_fused_rope(x, cos)) {
    return reference("concord::rope", {x, cos, sin, back}).at(0).toTensor();
  }
  const int64_t rotated = 2 * cos.size(-1), rest = x.size(-1) - rotated;
  const Tensor y = rotate(x.narrow(-1, 0, rotated), cos, sin, back);
  return rest == 0 ? y : at::cat({y, x.narrow(-1, rotated, rest)}, -1);
}

// Returns dense copies of the parts of |x| along its last dimension: one operator on the Ascend950, else one per part.
std::vector<Tensor> split_copies(const Tensor& x, at::IntArrayRef columns) {
  std::vector<Tensor> parts;
  for (const int64_t count : columns) {
    auto sizes = x.sizes().vec();
    sizes.back() = count;
    parts.push_back(at::empty(sizes, x.options()));
  }
  at::split_with_sizes_copy_out(parts, x, columns, -1);
  return parts;
}

// Returns queries, keys and values.
std::array<Tensor, 3> split_heads(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  const int64_t size = qkv.size(-1) / (heads + 2 * kv_heads);
  const auto parts = split_copies(qkv, {heads * size, kv_heads * size, kv_heads * size});
  const auto as_heads = [size](const Tensor& part) { return part.unflatten(-1, {-1, size}); };
  return {as_heads(parts[0]), as_heads(parts[1]), as_heads(parts[2])};
}

bool has_fused_heads(const Tensor& qkv, const Tensor& cos, int64_t heads, int64_t kv_heads) {
  return rotary_mul() && has_fused_rope(qkv.unflatten(-1, {heads + 2 * kv_heads, -1}), cos);
}

const std::optional<c10::OperatorHandle>& rope_of_packed() {
  static const auto op = find("npu_mrope");
  return op;
}

// CANN's documentation of RopeWithSinCosCache: multiples of 32 elements of 16 bits, or of 16 of 32 bits.
bool rotates_packed(const Tensor& heads, const Tensor& cos) {
  const int64_t unit = heads.scalar_type() == at::kFloat ? 16 : 32;
  return rope_of_packed() && has_fused_rope(heads, cos) && heads.size(-1) % unit == 0 && 2 * cos.size(-1) % unit == 0;
}

// Rotates queries and keys [t, q n], whose rows may have gaps, with one call. Returns them densely.
std::array<Tensor, 2> rotate_packed(const Tensor& q, const Tensor& k, int64_t size, const Tensor& cos,
                                    const Tensor& sin, bool back, int64_t batch) {
  const auto [table, rows] = factor_cache().get(cos, sin, q.scalar_type(), back, batch);
  const std::vector<int64_t> one_position_per_token(3, 0);
  const Stack made = call(*rope_of_packed(), {{"positions", rows},
                                              {"query", q},
                                              {"key", k},
                                              {"cos_sin_cache", table},
                                              {"head_size", size},
                                              {"mrope_section", one_position_per_token}});
  return {made.at(0).toTensor(), made.at(1).toTensor()};
}

int64_t batch_of(const Tensor& heads) { return heads.dim() == 4 ? heads.size(1) : 1; }

// Rotates queries and keys [s, b, q, n] with one call if their sizes allow.
std::array<Tensor, 2> rotate_both(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool back) {
  if (!rotates_packed(q, cos)) return {rope(q, cos, sin, back), rope(k, cos, sin, back)};
  const auto as_rows = [](const Tensor& x) { return x.contiguous().flatten(-2).flatten(0, -2); };
  const auto made = rotate_packed(as_rows(q), as_rows(k), q.size(-1), cos, sin, back, batch_of(q));
  return {made[0].view(q.sizes()), made[1].view(k.sizes())};
}

Triple rope_qkv(const Tensor& qkv, const Tensor& cos, const Tensor& sin, int64_t heads, int64_t kv_heads) {
  if (!has_fused_heads(qkv, cos, heads, kv_heads)) {
    const Stack made = reference("concord::rope_qkv", {qkv, cos, sin, heads, kv_heads});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
  }
  const Tensor all = qkv.unflatten(-1, {heads + 2 * kv_heads, -1});
  if (!rotates_packed(all, cos)) {
    const auto [q, k, v] = split_heads(qkv, heads, kv_heads);
    return {rope(q, cos, sin, false), rope(k, cos, sin, false), v};
  }
  const int64_t size = all.size(-1);
  const Tensor rows = qkv.contiguous().flatten(0, -2);
  const auto [q, k] = rotate_packed(rows.narrow(-1, 0, heads * size), rows.narrow(-1, heads * size, kv_heads * size),
                                    size, cos, sin, false, batch_of(all));
  return {q.view(all.narrow(-2, 0, heads).sizes()), k.view(all.narrow(-2, heads, kv_heads).sizes()),
          all.narrow(-2, heads + kv_heads, kv_heads).contiguous()};
}

Tensor rope_qkv_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos, const Tensor& sin) {
  const auto [q, k] = rotate_both(dq, dk, cos, sin, true);
  return at::cat({q, k, dv}, -2).flatten(-2);
}

// Calls an operator of Concord, on this device.
Stack call_concord(const char* name, Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack;
}

// The norms are those of norm.cpp.
Four norm_rope_qkv(const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos,
                   const Tensor& sin, int64_t heads, int64_t kv_heads, double eps) {
  const auto [q, k, v] = split_heads(qkv, heads, kv_heads);
  const Stack of_q = call_concord("concord::rms_norm", {q, q_weight, eps});
  const Stack of_k = call_concord("concord::rms_norm", {k, k_weight, eps});
  const auto [turned_q, turned_k] = rotate_both(of_q.at(0).toTensor(), of_k.at(0).toTensor(), cos, sin, false);
  return {turned_q, turned_k, v, at::cat({of_q.at(1).toTensor(), of_k.at(1).toTensor()}, -1)};
}

Triple norm_rope_qkv_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& qkv,
                              const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos,
                              const Tensor& sin) {
  const int64_t heads = dq.size(-2), kv_heads = dk.size(-2);
  const Tensor all = qkv.unflatten(-1, {heads + 2 * kv_heads, -1});
  const auto [grad_q, grad_k] = rotate_both(dq, dk, cos, sin, true);
  const Stack of_q = call_concord("concord::rms_norm_backward",
                                  {grad_q, all.narrow(-2, 0, heads), q_weight, rstd.narrow(-1, 0, heads)});
  const Stack of_k = call_concord("concord::rms_norm_backward", {grad_k, all.narrow(-2, heads, kv_heads), k_weight,
                                                                 rstd.narrow(-1, heads, kv_heads)});
  return {at::cat({of_q.at(0).toTensor(), of_k.at(0).toTensor(), dv}, -2).flatten(-2), of_q.at(1).toTensor(),
          of_k.at(1).toTensor()};
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("rope", rope);
  m.impl("rope_qkv", rope_qkv);
  m.impl("rope_qkv_backward", rope_qkv_backward);
  m.impl("norm_rope_qkv", norm_rope_qkv);
  m.impl("norm_rope_qkv_backward", norm_rope_qkv_backward);
}

}  // namespace
}  // namespace concord::ascend::torch_side
