#include "core/torch/remainder.h"

#include <bit>

namespace concord {
namespace {

static_assert(std::endian::native == std::endian::little, "the low half of an fp32 number is its first");

// Halves of each fp32 number; views.
at::Tensor halves(const at::Tensor& wide) { return wide.view(at::kShort).view({-1, 2}); }
at::Tensor low_half(const at::Tensor& wide) { return halves(wide).select(1, 0); }
at::Tensor high_half(const at::Tensor& wide) { return halves(wide).select(1, 1); }

}  // namespace

void join_remainder(const at::Tensor& high, const at::Tensor& low, const at::Tensor& wide) {
  high_half(wide).copy_(high.view(at::kShort));
  low_half(wide).zero_();
  wide.view(at::kInt).add_(low);
}

void split_remainder(const at::Tensor& wide, const at::Tensor& high, const at::Tensor& low) {
  // CUDA's NaN is 0x7fffffff: its high half plus one is 0x8000, the bits of -0.
  constexpr int64_t kMostBits = 0x7fff7fff;
  wide.view(at::kInt).clamp_max_(kMostBits);
  low.copy_(low_half(wide));
  const at::Tensor bits = high.view(at::kShort);
  bits.copy_(high_half(wide));
  bits.add_(low.lt(0).to(at::kShort));
}

}  // namespace concord
