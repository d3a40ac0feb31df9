// AdamW: as two operators, and by name through the graph engine, which torch_npu.npu_apply_adam_w calls on Ascend910.
#include <ATen/ops/maximum.h>
#include <ATen/ops/neg.h>

#include <array>
#include <cmath>
#include <cstring>

#include "backends/ascend/sim/opapi/operator.h"
#include "backends/ascend/sim/runtime/named_operator.h"

extern "C" const char* aclGetRecentErrMsg();

namespace concord::ascend::sim {

using at::Scalar;
using at::Tensor;

namespace {

// What all of them do once the two moments' corrections are known.
struct AdamW {
  double rate, beta1, beta2, decay, epsilon;
  double correction1, correction2;  // 1 - beta^t
  bool maximize;

  void step(const Tensor& weight, const Tensor& m, const Tensor& v, const std::optional<Out>& largest,
            const Tensor& gradient) const {
    const Tensor g = maximize ? at::neg(gradient) : gradient;
    weight.mul_(1 - rate * decay);
    m.lerp_(g.to(m.scalar_type()), 1 - beta1);
    v.mul_(beta2).addcmul_(g, g, 1 - beta2);
    if (largest.has_value()) *largest = at::maximum(**largest, v);
    const Tensor& second = largest.has_value() ? **largest : v;
    weight.addcdiv_(m, second.sqrt().div_(std::sqrt(correction2)).add_(epsilon), -rate / correction1);
  }
};

double number(const Tensor& tensor) { return tensor.reshape({}).to(at::kDouble).item<double>(); }

// The numbers of ApplyAdamW, in the order of its arguments. The powers are those of the previous step.
AdamW rule_of(const std::array<double, 7>& n, bool maximize) {
  const auto [beta1_power, beta2_power, rate, decay, beta1, beta2, epsilon] = n;
  return {rate, beta1, beta2, decay, epsilon, 1 - beta1_power * beta1, 1 - beta2_power * beta2, maximize};
}

// ------------------------------------------------------------------------------------------------- by name

std::shared_ptr<TensorView> view_of(const NamedTensor& tensor) {
  auto view = std::make_shared<TensorView>();
  view->sizes.assign(tensor.sizes, tensor.sizes + tensor.dims);
  view->strides.resize(view->sizes.size());
  int64_t dense = 1;
  for (size_t i = view->sizes.size(); i-- > 0; dense *= view->sizes[i]) view->strides[i] = dense;
  view->dtype = tensor.dtype;
  view->format = abi::kAclFormatNd;
  view->storage = tensor.data;
  return view;
}

// A number of the call: on the device, or on the host, where its memory is invalid after the call.
class Constant {
 public:
  explicit Constant(const NamedTensor& tensor) {
    const size_t size = dtype_size(tensor.dtype);
    if (size == 0 || tensor.dims != 0 || tensor.data == nullptr) {
      throw OperatorError(kAclnnParamInvalid, "a number is expected, not a tensor of " + dtype_name(tensor.dtype));
    }
    if (concord_sim_check_device_memory(tensor.data, size, "a number") == 0) {
      view_ = view_of(tensor);
      return;
    }
    aclGetRecentErrMsg();  // that it is the host's is not an error
    aclScalar scalar{tensor.dtype, {}};
    std::memcpy(scalar.value, tensor.data, size);
    value_ = to_scalar(scalar).toDouble();
  }
  // On the stream's thread.
  double value() const { return view_ != nullptr ? number(open_tensor(*view_)) : value_; }

 private:
  std::shared_ptr<TensorView> view_;
  double value_ = 0;
};

bool is_set(const NamedCall& call, const char* attribute) {
  const char* value = call.attribute(&call, attribute);
  return value != nullptr && std::string(value) == "true";
}

// Inputs: weight, m, v, the seven numbers, gradient, and the largest v where amsgrad is set.
class NamedAdamW final : public aclOpExecutor {
 public:
  explicit NamedAdamW(const NamedCall& call) : aclOpExecutor("ApplyAdamW"), maximize_(is_set(call, "maximize")) {
    if (call.input_count < 11) throw OperatorError(kAclnnParamInvalid, "eleven inputs are expected");
    if (is_set(call, "amsgrad")) throw OperatorError(kAclnnParamInvalid, "amsgrad is not simulated");
    for (int64_t i = 3; i < 10; ++i) numbers_.emplace_back(call.inputs[i]);
    for (const int64_t index : {0, 1, 2, 10}) tensors_.push_back(view_of(call.inputs[index]));
    bytes_read = bytes_of(tensors_);
    bytes_written = bytes_read - bytes_of(tensors_.back());
  }
  void run() const override {
    std::array<double, 7> numbers{};
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = numbers_[i].value();
    const Tensor weight = open_tensor(*tensors_[0]);
    rule_of(numbers, maximize_)
        .step(weight, open_tensor(*tensors_[1]), open_tensor(*tensors_[2]), std::nullopt, open_tensor(*tensors_[3]));
  }

 private:
  const bool maximize_;
  std::vector<Constant> numbers_;
  std::vector<std::shared_ptr<TensorView>> tensors_;
};

}  // namespace

extern "C" CONCORD_SIM_EXPORT int32_t concord_sim_named_operator(const NamedCall* call) {
  if (std::string(call->type) != "ApplyAdamW") return kNotNamed;
  try {
    return queue_call(std::make_unique<NamedAdamW>(*call), call->stream);
  } catch (const OperatorError& error) {
    return refuse(call->type, error.code(), error.what());
  }
}

// ----------------------------------------------------------------------------------------------- operators

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
// |step| counts from 0.
OPERATOR(ApplyAdamWV2, (InOut weight, InOut m, InOut v, std::optional<Out> largest, Tensor gradient, Tensor step,
                        float rate, float beta1, float beta2, float decay, float epsilon, bool amsgrad,
                        bool maximize) {
  const double t = step.to(at::kDouble).item<double>() + 1;
  const double correction1 = 1 - std::pow(double{beta1}, t);
  const double correction2 = 1 - std::pow(double{beta2}, t);
  const AdamW rule{rate, beta1, beta2, decay, epsilon, correction1, correction2, maximize};
  rule.step(*weight, *m, *v, amsgrad ? largest : std::nullopt, gradient);
})

OPERATOR(ApplyAdamW, (InOut weight, InOut m, InOut v, Tensor beta1_power, Tensor beta2_power, Tensor rate, Tensor decay,
                      Tensor beta1, Tensor beta2, Tensor epsilon, Tensor gradient, std::optional<Out> largest,
                      bool amsgrad, bool maximize) {
  const AdamW rule = rule_of({number(beta1_power), number(beta2_power), number(rate), number(decay), number(beta1),
                              number(beta2), number(epsilon)}, maximize);
  rule.step(*weight, *m, *v, amsgrad ? largest : std::nullopt, gradient);
})

// clang-format on
}  // namespace concord::ascend::sim
