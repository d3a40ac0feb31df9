// Compares the kernels of the platform's device, operator by operator and at the sizes of real models, with the
// references on the host in fp64. The error bounds are those of ops_test (core/ops/testing/samples.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace concord::ops {

struct ComparisonOptions {
  std::string filter;     // only operators whose name contains it
  bool all_sizes = true;  // false: the first and smallest sample of each operator
};

// One kernel of an operator on one sample.
struct OperatorComparison {
  std::string op;                  // "concord::rms_norm"
  std::string kernel;              // "reference", composed of libtorch's operators on the device, or "own"
  std::string type;                // of the elements, "BFloat16"
  std::string arguments;           // types and sizes
  std::vector<double> bound_used;  // per output: the largest error as a fraction of its bound; NaN if it is NaN
  std::string choices;             // code paths that the kernel took, if the device's library reports them
  std::string error;               // why it could not be compared; empty if it was

  bool is_right() const;
};

// Calls |visit| for each comparison, in fp32, bf16 and fp16. Kernels that throw do not prevent the others from being
// compared. Returns the names of the operators that have no sample of real size. Threads: one at a time.
std::vector<std::string> compare_operators(const ComparisonOptions& options,
                                           const std::function<void(const OperatorComparison&)>& visit);

}  // namespace concord::ops
