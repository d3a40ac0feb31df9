#include "core/ops/testing/samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace concord::ops::testing {

int64_t Draw::between(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(engine_);
}

int64_t Draw::size() {
  constexpr int64_t kSizes[] = {1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63};
  return kSizes[between(0, std::size(kSizes) - 1)];
}

// Returns 0 < x <= 1. libstdc++'s distributions take two logarithms of a long double per number, which 64-bit ARM has
// only in software; that was half of the test's time.
double Draw::fraction() { return (static_cast<double>(engine_() >> 11) + 1) * 0x1p-53; }

at::Tensor Draw::normal(std::vector<int64_t> sizes, c10::ScalarType type, double deviation) {
  const at::Tensor result = at::empty(sizes, at::kDouble);
  double* data = result.mutable_data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); i += 2) {  // two at a time, by Box and Muller
    const double radius = deviation * std::sqrt(-2 * std::log(fraction())), angle = 2 * std::numbers::pi * fraction();
    data[i] = radius * std::cos(angle);
    if (i + 1 < result.numel()) data[i + 1] = radius * std::sin(angle);
  }
  return result.to(type);
}

at::Tensor Draw::eighths(std::vector<int64_t> sizes, c10::ScalarType type) {
  return integers(std::move(sizes), -48, 48).to(type).div(8);
}

at::Tensor Draw::integers(std::vector<int64_t> sizes, int64_t least, int64_t most) {
  const at::Tensor result = at::empty(sizes, at::kLong);
  int64_t* data = result.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < result.numel(); ++i) data[i] = between(least, most);
  return result;
}

std::map<std::string, SampleMaker>& samples() {
  static std::map<std::string, SampleMaker> all;
  return all;
}

std::map<std::string, std::vector<SampleMaker>>& real_sizes() {
  static std::map<std::string, std::vector<SampleMaker>> all;
  return all;
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.detach().to(at::kCPU, at::kDouble).abs().max().item<double>();
}

double half_unit(c10::ScalarType type) {
  switch (type) {
    case at::kDouble: return std::numeric_limits<double>::epsilon() / 2;
    case at::kFloat: return std::numeric_limits<float>::epsilon() / 2;
    case at::kBFloat16: return 1.0 / 256;
    case at::kHalf: return 1.0 / 2048;
    default: return 0;
  }
}

double sum_unit(c10::ScalarType type) { return half_unit(type == at::kDouble ? at::kDouble : at::kFloat); }

bool is_short(c10::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

double roundings_of_sum(int64_t terms) {
  const auto n = static_cast<double>(terms);
  return std::min(n, 8 * std::sqrt(n));
}

Sample::Slack rounded_before_the_sum(c10::ScalarType type) {
  return [type](const std::vector<c10::IValue>& arguments, const std::vector<at::Tensor>& exact) {
    return std::vector{half_unit(type) * (exact[0] - arguments[0].toTensor().to(at::kDouble)).abs()};
  };
}

at::Tensor pair_lengths(const at::Tensor& x, int64_t half) {
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  const at::Tensor length = (a * a + b * b).sqrt();
  return at::cat({length, length, x.narrow(-1, 2 * half, x.size(-1) - 2 * half).abs()}, -1);
}

// With u per factor, the error is u (|a cos| + |b sin|) <= u sqrt(a^2 + b^2).
double unit_of_rotation_on_ascend(c10::ScalarType type) { return is_short(type) ? 2 * half_unit(type) : 0; }

Sample::Slack rotated_by_cann(c10::ScalarType type, int64_t half, size_t rotated) {
  return [=](const std::vector<c10::IValue>&, const std::vector<at::Tensor>& exact) {
    std::vector<at::Tensor> slack;
    for (size_t i = 0; i < exact.size(); ++i) {
      slack.push_back(i < rotated ? unit_of_rotation_on_ascend(type) * pair_lengths(exact[i], half)
                                  : at::zeros_like(exact[i]));
    }
    return slack;
  };
}

Sample::Slack packed_rotated_by_cann(c10::ScalarType type, int64_t half, int64_t n, int64_t rotated) {
  return [=](const std::vector<c10::IValue>&, const std::vector<at::Tensor>& exact) {
    const at::Tensor heads = exact[0].unflatten(-1, {-1, n});
    const at::Tensor slack = unit_of_rotation_on_ascend(type) * pair_lengths(heads, half);
    slack.narrow(-2, rotated, heads.size(-2) - rotated).zero_();
    return std::vector{slack.flatten(-2)};
  };
}

at::Tensor misaligned(const at::Tensor& tensor) {
  const at::Tensor place = at::empty({tensor.numel() + 1}, tensor.options()).narrow(0, 1, tensor.numel());
  return place.view(tensor.sizes()).copy_(tensor);
}

}  // namespace concord::ops::testing
