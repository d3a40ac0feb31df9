// Element-wise comparison of the tensors of two files or folders. Reads both in pieces of 1 MiB, so memory does not
// depend on their size. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/safetensors/index.h"

namespace concord::safetensors {

// a agrees with b if |a - b| <= absolute + relative * |b|.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

// The result of a comparison. NaN is equal only to NaN, an infinity only to itself; otherwise they are infinitely far.
// Integers are compared exactly.
struct Difference {
  struct Worst {
    double value = 0;
    int64_t at = 0;  // row-major index of the element
    double a = 0, b = 0;
  };
  int64_t elements = 0;
  int64_t unequal = 0;        // elements that are not equal
  int64_t beyond = 0;         // elements beyond the tolerance
  int64_t nan_in_one = 0;     // NaN on one side only
  Worst largest_absolute{};   // largest |a - b|; ties: the first element
  Worst largest_relative{};   // largest |a - b| / |b| over the elements with b != 0
  double norm_ratio = 0;      // |a - b| / |b|, both as vectors: relative deviation of a gradient
  double tolerance_used = 0;  // maximum of |a - b| / (absolute + relative * |b|); above 1 some element is beyond

  bool identical() const { return unequal == 0; }
};

// Both must have the same number of elements; the types may differ. Throws std::logic_error otherwise.
Difference compare_tensors(const Weights::Tensor& a, const Weights::Tensor& b, const Tolerance& tolerance);

struct TensorComparison {
  enum class Outcome { identical, within_tolerance, differs, other_type, other_shape, only_in_a, only_in_b };
  std::string name;
  Outcome outcome = Outcome::identical;
  const TensorInfo* a = nullptr;  // null if it does not exist
  const TensorInfo* b = nullptr;
  std::optional<Difference> difference = {};  // if both exist and have the same shape

  bool agrees() const { return outcome == Outcome::identical || outcome == Outcome::within_tolerance; }
};
const char* to_string(TensorComparison::Outcome outcome);

// Compares every tensor of either, in natural order. Tensors of different types are reported as other_type, whatever
// their values, unless |any_type|. The result points into |a| and |b|.
std::vector<TensorComparison> compare_weights(const Weights& a, const Weights& b, const Tolerance& tolerance,
                                              bool any_type);

// Returns the multi-index of an element: [2, 7] for element 27 of a tensor of [5, 10].
std::vector<int64_t> index_of(int64_t element, const std::vector<int64_t>& shape);

}  // namespace concord::safetensors
