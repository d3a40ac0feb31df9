// Random arguments for the operators, for the harness (ops_test.cpp). An operator's test registers a maker of them.
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
  // Of a dimension: 1, odd ones and powers of two, up to some sixty.
  int64_t size();
  bool coin() { return between(0, 1) == 1; }
  // On the cpu, |deviation| wide, rounded to |type|.
  at::Tensor normal(std::vector<int64_t> sizes, c10::ScalarType type, double deviation = 1);
  // Multiples of 1/8 up to 6: of two of them, x + y and x + y / 2 are numbers of every type.
  at::Tensor eighths(std::vector<int64_t> sizes, c10::ScalarType type);
  // Of int64, least <= x <= most.
  at::Tensor integers(std::vector<int64_t> sizes, int64_t least, int64_t most);

 private:
  double fraction();

  std::mt19937_64 engine_;
};

struct Sample {
  std::vector<c10::IValue> arguments;
  // How far a correct kernel may be off: |got - exact| <= 2 u |exact| + roundings * v * size (in bf16 one u: there all
  // kernels round once), where u and v are half a unit in the last place of the output's type and of the type that sums
  // are taken in, and size is the largest of the exact output's elements and of magnitudes[i], for outputs where larger
  // terms cancel.
  double roundings = 16;
  std::vector<double> magnitudes = {};
  // Where that would allow too much: what takes the place of roundings * v * size, for each output a tensor that
  // broadcasts to it. Is given the arguments and the exact outputs, both in fp64, on the device that computed these.
  using Slack = std::function<std::vector<at::Tensor>(const std::vector<c10::IValue>&, const std::vector<at::Tensor>&)>;
  Slack slack = {};
  // Exact outputs are NaN or infinite in places, and there a kernel's have to be the same. Without it, both fail.
  bool has_nan = false;
};

using SampleMaker = std::function<Sample(Draw&, c10::ScalarType)>;

// The name of the operator -> its maker.
std::map<std::string, SampleMaker>& samples();

struct RegisterSamples {
  RegisterSamples(const char* op, SampleMaker maker) { samples().emplace(op, std::move(maker)); }
};

// Samples of real sizes. A device has kernels that it uses only for long sequences, wide rows or many tensors, and that
// no sample of some sixty elements reaches. All of them run if CONCORD_TEST_REAL_SIZES is 1. Else the host runs the
// first of each operator, which therefore is small, and a device none: it may be simulated.
std::map<std::string, std::vector<SampleMaker>>& real_sizes();

struct RegisterRealSizes {
  RegisterRealSizes(const char* op, std::vector<SampleMaker> makers) { real_sizes().emplace(op, std::move(makers)); }
};

// The largest absolute value of |tensor|; 0 if it is empty.
double largest(const at::Tensor& tensor);

// ------------------------------------------------------------------------------------------------------------- bounds

// Half a unit in the last place of 1: u.
double half_unit(c10::ScalarType type);
// The same for the type in which sums of elements of |type| are accumulated: v.
double sum_unit(c10::ScalarType type);
bool is_short(c10::ScalarType type);  // 16 bits

// By how many roundings of the sum of absolute values a sum of |terms| can be off, in whatever order it is taken: one
// for each term in the worst case, and 8 sqrt(terms) if roundings are independent and as often up as down, except for
// one sum in 1e13 / terms (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019: lambda = 8).
double roundings_of_sum(int64_t terms);

// The same values at an odd place in memory, where kernels cannot read several elements at once.
at::Tensor misaligned(const at::Tensor& tensor);

}  // namespace concord::ops::testing
