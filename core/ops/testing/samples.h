// Random arguments for the operators, for the harness (ops_test.cpp). An operator's test registers a generator of them.
//
// Example:
//   const RegisterSamples swiglu("concord::swiglu", [](Draw& draw, c10::ScalarType type) {
//     return Sample{{draw.normal({draw.size(), 2 * draw.size()}, type)}};
//   });
//
// The harness then runs every kernel that is registered for the operator. An operator without samples fails.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace concord::ops::testing {

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  int64_t between(int64_t least, int64_t most);
  // Returns a dimension: 1, odd numbers and powers of two, up to some sixty.
  int64_t size();
  bool coin() { return between(0, 1) == 1; }
  // Returns a tensor on the cpu with standard deviation |deviation|, rounded to |type|.
  at::Tensor normal(std::vector<int64_t> sizes, c10::ScalarType type, double deviation = 1);
  // Returns multiples of 1/8 up to 6: sums x + y and x + y / 2 of two of them are exact in every type.
  at::Tensor eighths(std::vector<int64_t> sizes, c10::ScalarType type);
  // Returns int64 with least <= x <= most.
  at::Tensor integers(std::vector<int64_t> sizes, int64_t least, int64_t most);

 private:
  double fraction();

  std::mt19937_64 engine_;
};

struct Sample {
  std::vector<c10::IValue> arguments;
  // The error bound of a correct kernel: |got - exact| <= 2 u |exact| + roundings * v * size (in bf16 one u, since all
  // kernels round once), where u and v are half an ulp of the output's type and of the accumulation type, and size is
  // the maximum of the exact output's elements and of magnitudes[i], for outputs with cancelling terms.
  double roundings = 16;
  std::vector<double> magnitudes = {};
  // If that bound is too loose: replaces roundings * v * size, with a tensor per output that broadcasts to it. Called
  // with the arguments and the exact outputs, both in fp64, on the device that computed these.
  using Slack = std::function<std::vector<at::Tensor>(const std::vector<c10::IValue>&, const std::vector<at::Tensor>&)>;
  Slack slack = {};
  // Exact outputs contain NaN or infinities, and a kernel's must be the same there. Otherwise both fail the test.
  bool has_nan = false;
  // Added to the bound of Ascend's kernels: torch_npu's operators round in places where other kernels do not.
  Slack ascend_slack = {};
};

using SampleMaker = std::function<Sample(Draw&, c10::ScalarType)>;

// Maps the name of an operator to its generator.
std::map<std::string, SampleMaker>& samples();

struct RegisterSamples {
  RegisterSamples(const char* op, SampleMaker maker) { samples().emplace(op, std::move(maker)); }
};

// Samples of real sizes. A device has kernels that it uses only for long sequences, wide rows or many tensors, and that
// no sample of some sixty elements reaches. All of them run if CONCORD_TEST_REAL_SIZES is 1. Otherwise the host runs
// the first one of each operator, which therefore is small, and a device none, since it may be simulated.
std::map<std::string, std::vector<SampleMaker>>& real_sizes();

struct RegisterRealSizes {
  RegisterRealSizes(const char* op, std::vector<SampleMaker> makers) { real_sizes().emplace(op, std::move(makers)); }
};

// Returns the largest absolute value of |tensor|; 0 if it is empty.
double largest(const at::Tensor& tensor);

// ------------------------------------------------------------------------------------------------------------- bounds

// Returns half an ulp of 1: u.
double half_unit(c10::ScalarType type);
// Returns half an ulp of 1 of the accumulation type of |type|: v.
double sum_unit(c10::ScalarType type);
bool is_short(c10::ScalarType type);  // bf16 or fp16

// Returns the error bound of a sum of |terms|, in any order, in roundings of the sum of absolute values: one per term
// in the worst case, and 8 sqrt(terms) if roundings are independent and unbiased, except for one sum in 1e13 / terms
// (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019: lambda = 8).
double roundings_of_sum(int64_t terms);

// Returns the slack of a first output that is the first argument plus a term which is rounded before the addition.
Sample::Slack rounded_before_the_sum(c10::ScalarType type);

// Returns the lengths of the pairs of x [..., n] that a rotation of 2 |half| elements turns, for both elements of each;
// absolute values of the others.
at::Tensor pair_lengths(const at::Tensor& x, int64_t half);
// Returns the relative error of pairs that CANN rotates: it takes factors of the heads' type, and rounds products to
// fp16.
double unit_of_rotation_on_ascend(c10::ScalarType type);
// Returns the slack of CANN's rotation in the first |rotated| outputs, [..., n] each.
Sample::Slack rotated_by_cann(c10::ScalarType type, int64_t half, size_t rotated = 1);
// Returns the slack of CANN's rotation in an output of packed heads of size |n|, of which the first |rotated| turn.
Sample::Slack packed_rotated_by_cann(c10::ScalarType type, int64_t half, int64_t n, int64_t rotated);

// Arguments of concord::adamw_narrow_: tensors of up to |most| elements, moments in all combinations of types, some at
// odd offsets. Rounding may give a moment in codes the next one.
struct NarrowAdamWSize {
  int64_t tensors;
  int64_t most;
};
Sample narrow_adamw_sample(Draw& draw, c10::ScalarType type, const NarrowAdamWSize& size);

// Returns the same values at a misaligned address, where kernels cannot use vector loads.
at::Tensor misaligned(const at::Tensor& tensor);

}  // namespace concord::ops::testing
