// Numbers for tests of parallel layers: identical on every rank, whatever its device or layout.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <vector>

#include "core/mesh/initialize.h"

namespace concord::tests {

// Returns |x| on the device of this rank's job. References stay on the cpu.
inline at::Tensor here(const at::Tensor& x) { return x.to(parallel_context().torch_device()); }

// Returns uniform numbers in [-1, 1), a function of |seed| and the index, rounded to |type|.
inline at::Tensor sample(std::vector<int64_t> shape, uint64_t seed, at::ScalarType type = at::kDouble) {
  const at::Tensor wide = at::empty(shape, at::kDouble);
  double* data = wide.mutable_data_ptr<double>();
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (int64_t i = 0; i < wide.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's
    data[i] = static_cast<double>(state >> 11) * 0x1p-52 - 1.0;
  }
  return wide.to(type);
}

// Returns half an ulp of 1: the largest relative error of one rounding.
inline double rounding_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return 0x1p-53;
    case at::kFloat: return 0x1p-24;
    case at::kBFloat16: return 0x1p-9;
    default: return 1;
  }
}

// Returns the rounding of sums inside an operator: bf16 and fp16 GEMMs accumulate in fp32.
inline double sum_rounding_of(at::ScalarType type) { return rounding_of(type == at::kBFloat16 ? at::kFloat : type); }

}  // namespace concord::tests
