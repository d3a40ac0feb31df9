// A small network with sinks, autograd's gradients and several uses of a weight, for tests of data parallelism.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <string>
#include <vector>

#include "core/ops/linear.h"
#include "core/ops/norm/rms_norm.h"
#include "core/parallel/parameter.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {

inline Parameter parameter_of(const std::string& name, const at::Tensor& value) {
  Parameter parameter{.spec = {.name = name}, .init = constant_init(0), .value = value.clone().requires_grad_(true)};
  for (const int64_t size : value.sizes()) parameter.spec.dims.push_back({.size = size});
  return parameter;
}

// y = w2 norm(w1 w1 x + b1): w1 is used twice, the norm and the bias get their gradients from autograd.
class SmallNetwork {
 public:
  static constexpr int64_t kWidth = 24;

  explicit SmallNetwork(at::ScalarType type = at::kFloat, int64_t width = kWidth) : type_(type), width_(width) {
    parameters_.reserve(4);
    parameters_.push_back(parameter_of("w1", sample({width, width}, 1, type)));
    parameters_.back().uses = 2;
    parameters_.push_back(parameter_of("b1", sample({width}, 2, type)));
    parameters_.push_back(parameter_of("norm", at::ones({width}, type)));
    parameters_.push_back(parameter_of("w2", sample({3, width}, 3, type)));
  }

  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> all;
    for (Parameter& parameter : parameters_) all.push_back(&parameter);
    return all;
  }

  void later(DeferredWgrads* grads) {
    for (Parameter& parameter : parameters_) parameter.sink.deferred = grads;
  }

  // Returns the sum over the rows of sample(seed).
  at::Tensor loss(uint64_t seed, int64_t rows = 5) {
    Parameter &w1 = parameters_[0], &b1 = parameters_[1], &norm = parameters_[2], &w2 = parameters_[3];
    const at::Tensor x = sample({rows, width_}, seed, type_);
    const at::Tensor once = concord::linear(x, w1.used(), {}, w1.grad_sink());
    const at::Tensor twice = concord::linear(once, w1.used(), b1.used(), w1.grad_sink());
    const at::Tensor y = concord::linear(rms_norm(twice, norm.used(), 1e-6), w2.used(), {}, w2.grad_sink());
    return y.to(at::kFloat).square().sum();
  }

 private:
  at::ScalarType type_;
  int64_t width_;
  std::vector<Parameter> parameters_;
};

}  // namespace concord::tests
