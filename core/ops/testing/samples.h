// Random arguments for the operators, for the harness (ops_test.cpp). An operator's test registers a maker of them:
//
//   const RegisterSamples swiglu("concord::swiglu", [](Draw& draw, c10::ScalarType type) {
//     return Sample{{draw.normal({draw.size(), 2 * draw.size()}, type)}}; });
//
// The harness then runs every kernel that anybody has registered for the operator. An operator without samples fails.
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
  // Of int64, least <= x <= most.
  at::Tensor integers(std::vector<int64_t> sizes, int64_t least, int64_t most);

 private:
  std::mt19937_64 engine_;
};

struct Sample {
  std::vector<c10::IValue> arguments;
  // How far a correct kernel may be off: |got - exact| <= 2 u |exact| + roundings * v * size, where u and v are half a
  // unit in the last place of the output's type and of the type that sums are taken in, and size is the largest of the
  // exact output's elements and of magnitudes[i], for outputs where larger terms cancel.
  double roundings = 16;
  std::vector<double> magnitudes = {};
};

using SampleMaker = std::function<Sample(Draw&, c10::ScalarType)>;

// The name of the operator -> its maker.
std::map<std::string, SampleMaker>& samples();

struct RegisterSamples {
  RegisterSamples(const char* op, SampleMaker maker) { samples().emplace(op, std::move(maker)); }
};

// The largest absolute value of |tensor|; 0 where it is empty.
double largest(const at::Tensor& tensor);

}  // namespace concord::ops::testing
