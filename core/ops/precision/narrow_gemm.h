// Workarounds for bf16 and fp16 GEMMs on hosts where libtorch multiplies one element at a time.
#pragma once

#include <ATen/core/Tensor.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace concord::ops {

// Returns whether the CPU has bf16 instructions. Without them OpenBLAS calls a function for every element of every
// product: 256 x 1024 by 1024 x 1024 takes 4.5 s on a Neoverse-N1, and 0.016 s in fp32 including the conversions. On
// x86 oneDNN multiplies.
inline bool multiplies_bf16() {
#if defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kBf16 = 1UL << 14;  // HWCAP2_BF16, which older headers lack
  static const bool has = (getauxval(AT_HWCAP2) & kBf16) != 0;
  return has;
#else
  return true;
#endif
}

// Returns false on 64-bit ARM, where libtorch has only a loop: 0.12 s for the product above and 0.96 s for the gradient
// of its input.
inline bool multiplies_fp16() {
#if defined(__aarch64__)
  return false;
#else
  return true;
#endif
}

// Returns whether the product of |x|, rows of an input or a gradient, and a weight is slower in its own type than in
// fp32 including the conversions. The result is the same up to the order of sums: libtorch accumulates in fp32 too, and
// rounds once.
inline bool multiplies_faster_in_fp32(const at::Tensor& x) {
  constexpr int64_t kFewRows = 16;  // for fewer rows the conversion of the weight takes longer than the fp16 product
  if (!x.is_cpu()) return false;
  if (x.scalar_type() == at::kBFloat16) return !multiplies_bf16();
  return x.scalar_type() == at::kHalf && !multiplies_fp16() && x.dim() > 0 && x.size(-1) > 0 &&
         x.numel() / x.size(-1) >= kFewRows;
}

}  // namespace concord::ops
