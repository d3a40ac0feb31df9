// Rotary positions on Ascend: torch_npu's fused rotation (CANN's RotaryPositionEmbedding). It takes heads and factors
// of one type, so heads of 16 bits are rotated in fp32: factors of 16 bits would cost more than the result's rounding.
// Inputs beyond its limits use the reference.
//
// n size of a head, r angles: the first 2 r elements of a head are rotated.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
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

// CANN's documentation of RotaryPositionEmbedding.
constexpr int64_t kLargestRotation = 896;

bool has_fused_rope(const Tensor& x, const Tensor& cos) {
  const auto type = x.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  return is_known && x.numel() > 0 && (x.dim() == 3 || x.dim() == 4) && cos.dim() == x.dim() - 1 &&
         2 * cos.size(-1) <= kLargestRotation;
}

// The factors of one rotation: cos and sin for both halves of a head, in fp32.
struct Factors {
  Tensor cos, sin;
};

Factors make_factors(const Tensor& cos, const Tensor& sin, bool back) {
  const Tensor s = back ? -sin : sin;
  return {at::cat({cos, cos}, -1).unsqueeze(-2), at::cat({s, s}, -1).unsqueeze(-2)};
}

// The factors that were made last, in each direction and on each stream. All layers of a pass have the same angles, or
// two kinds of them take turns. An entry refers to the storage of its angles without keeping it alive, and is not used
// once that is freed or written to. A tensor of inference mode does not count its writes, so its factors are not kept.
class FactorCache {
 public:
  Factors get(const Tensor& cos, const Tensor& sin, bool back) {
    if (cos.is_inference() || sin.is_inference()) return make_factors(cos, sin, back);
    const c10::Stream stream = c10::impl::VirtualGuardImpl(cos.device().type()).getStream(cos.device());
    const std::lock_guard lock(mutex_);
    std::vector<Entry>& entries = entries_.at(back ? 1 : 0);
    for (const Entry& each : entries) {
      if (each.stream == stream && each.cos.is(cos) && each.sin.is(sin)) return each.factors;
    }
    if (entries.size() == kMaxEntries) entries.erase(entries.begin());
    entries.push_back({Source(cos), Source(sin), stream, make_factors(cos, sin, back)});
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

// Returns |x|, of which all elements are rotated, in fp32. Rotating back is rotating by the negative angle.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const Factors factors = factor_cache().get(cos, sin, back);
  const auto four = [&](const Tensor& each) { return x.dim() == 4 ? each : each.unsqueeze(1); };
  const Tensor y =
      call(*rotary_mul(),
           {{"input", four(x.to(at::kFloat)).contiguous()}, {"r1", four(factors.cos)}, {"r2", four(factors.sin)}})
          .at(0)
          .toTensor();
  return x.dim() == 4 ? y : y.squeeze(1);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  if (!rotary_mul() || !has_fused_rope(x, cos)) {
    return reference("concord::rope", {x, cos, sin, back}).at(0).toTensor();
  }
  const int64_t rotated = 2 * cos.size(-1), rest = x.size(-1) - rotated;
  const Tensor y = rotate(x.narrow(-1, 0, rotated), cos, sin, back).to(x.scalar_type());
  return rest == 0 ? y : at::cat({y, x.narrow(-1, rotated, rest)}, -1);
}

// Queries and keys are neighbours, and are rotated together.
std::tuple<Tensor, Tensor, Tensor> rope_qkv(const Tensor& qkv, const Tensor& cos, const Tensor& sin, int64_t heads,
                                            int64_t kv_heads) {
  const Tensor all = qkv.unflatten(-1, {heads + 2 * kv_heads, -1});
  if (!rotary_mul() || !has_fused_rope(all, cos) || 2 * cos.size(-1) != all.size(-1)) {
    const Stack made = reference("concord::rope_qkv", {qkv, cos, sin, heads, kv_heads});
    return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
  }
  const Tensor turned = rotate(all.narrow(-2, 0, heads + kv_heads), cos, sin, false);
  const auto part = [&](const Tensor& from, int64_t first, int64_t count) {
    return from.narrow(-2, first, count).to(qkv.scalar_type()).contiguous();
  };
  return {part(turned, 0, heads), part(turned, heads, kv_heads), part(all, heads + kv_heads, kv_heads)};
}

Tensor rope_qkv_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& cos, const Tensor& sin) {
  if (!rotary_mul() || !has_fused_rope(dq, cos) || 2 * cos.size(-1) != dq.size(-1)) {
    return reference("concord::rope_qkv_backward", {dq, dk, dv, cos, sin}).at(0).toTensor();
  }
  const Tensor all = at::cat({dq, dk, dv}, -2), turned = all.narrow(-2, 0, dq.size(-2) + dk.size(-2));
  turned.copy_(rotate(turned, cos, sin, true));
  return all.flatten(-2);
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("rope", rope);
  m.impl("rope_qkv", rope_qkv);
  m.impl("rope_qkv_backward", rope_qkv_backward);
}

}  // namespace
}  // namespace concord::ascend::torch_side
