#include "core/ops/testing/compare.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/torch/device.h"

namespace concord::ops::testing {

using c10::DispatchKey;

namespace {

// Returns whether the platform's device supports the types of the operator.
bool has_types_of(const c10::OperatorHandle& op) {
  return op.operator_name().name.rfind("concord::fp8_", 0) != 0 ||
         current_platform().capability(CONCORD_CAP_TORCH_FP8) != 0;
}

}  // namespace

std::vector<c10::OperatorHandle> operators() {
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("concord::", 0) == 0) found.push_back(*c10::Dispatcher::singleton().findSchema(name));
  }
  return found;
}

bool is_floating(const at::Tensor& tensor) { return c10::isFloatingType(tensor.scalar_type()); }

Stack wide(const Stack& arguments) {
  return with_tensors(arguments,
                      [](const at::Tensor& t) { return is_floating(t) ? t.to(at::kDouble).clone() : t.clone(); });
}

std::vector<at::Tensor> run(const c10::OperatorHandle& op, DispatchKey key, const Stack& arguments) {
  Stack stack = arguments;
  op.callBoxedForDispatchKey(key, stack);
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& each : stack) {
    if (each.isTensor()) outputs.push_back(each.toTensor());
  }
  const auto& schema = op.schema();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !schema.returns().empty()) continue;
    if (arguments[i].isTensor()) {
      outputs.push_back(arguments[i].toTensor());
    } else {
      for (const at::Tensor& tensor : arguments[i].toTensorVector()) outputs.push_back(tensor);
    }
  }
  return outputs;
}

double share_of_bound(const at::Tensor& got, const at::Tensor& exact, const at::Tensor& slack, bool has_nan) {
  if (got.numel() == 0) return 0;
  const auto type = got.scalar_type();
  const double units = type == at::kBFloat16 ? 1 : 2;
  const double smallest = type == at::kHalf ? std::ldexp(1.0, -25) : 0;  // half of the smallest number that fp16 has
  const at::Tensor right = exact.to(at::kDouble), ours = got.to(right.device(), at::kDouble);
  const at::Tensor allowed = units * half_unit(type) * right.abs() + slack.to(right.device()) + smallest;
  at::Tensor shares = (ours - right).abs() / (allowed + 1e-300);
  if (has_nan) shares.masked_fill_((ours == right).logical_or(ours.isnan().logical_and(right.isnan())), 0);
  return shares.max().item<double>();
}

std::vector<at::Tensor> slack_of(const Sample& sample, const Stack& wide_arguments,
                                 const std::vector<at::Tensor>& exact, c10::ScalarType type) {
  if (sample.slack) return sample.slack(wide_arguments, exact);
  std::vector<at::Tensor> slack;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double size = std::max(largest(exact[i]), i < sample.magnitudes.size() ? sample.magnitudes[i] : 0);
    slack.push_back(at::tensor(sample.roundings * sum_unit(type) * size, at::kDouble));
  }
  return slack;
}

std::vector<at::Tensor> slack_of_kernel(c10::Device device, std::vector<at::Tensor> slack, const Sample& sample,
                                        const Stack& arguments, const std::vector<at::Tensor>& exact) {
  if (!device.is_privateuseone() || !sample.ascend_slack) return slack;
  const std::vector<at::Tensor> more = sample.ascend_slack(arguments, exact);
  for (size_t i = 0; i < more.size(); ++i) slack.at(i) = slack.at(i) + more[i];
  return slack;
}

std::string text_of(const Stack& arguments) {
  std::string text;
  for (const c10::IValue& each : arguments) {
    if (each.isTensor() && each.toTensor().defined()) {
      text +=
          fmt::format(" {}[{}]", c10::toString(each.toTensor().scalar_type()), fmt::join(each.toTensor().sizes(), ","));
    } else if (each.isTensorList()) {
      text += fmt::format(" {} tensors", each.toTensorVector().size());
    } else if (each.isIntList() && !each.toIntList().empty()) {
      text += fmt::format(" ({})", fmt::join(each.toIntVector(), ","));
    } else if (each.isInt()) {
      text += fmt::format(" {}", each.toInt());
    } else if (each.isDouble()) {
      text += fmt::format(" {:g}", each.toDouble());
    } else if (each.isBool()) {
      text += each.toBool() ? " true" : " false";
    }
  }
  return text;
}

std::vector<Kernel> kernels_of(const c10::OperatorHandle& op, c10::Device device) {
  std::vector<Kernel> found = {{DispatchKey::CompositeExplicitAutograd, c10::kCPU}};
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) found.push_back({DispatchKey::CPU, c10::kCPU});
  if (device.is_cpu() || !has_types_of(op)) return found;
  found.push_back({DispatchKey::CompositeExplicitAutograd, device});
  const DispatchKey key = c10::computeDispatchKey(std::nullopt, std::nullopt, device);
  if (op.hasKernelForDispatchKey(key)) found.push_back({key, device});
  return found;
}

at::Tensor placed(const at::Tensor& tensor, c10::Device device) {
  int64_t end = tensor.storage_offset() + 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) end += (tensor.size(i) - 1) * tensor.stride(i);
  const at::Tensor place = at::empty({end}, tensor.options().device(device));
  return place.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()).copy_(tensor);
}

Stack wide_on(c10::Device device, const Stack& arguments) {
  return with_tensors(wide(arguments), [&](const at::Tensor& t) { return t.to(device); });
}

Choices choices(c10::ScalarType type) {
  const auto op = c10::Dispatcher::singleton().findSchema({"concord_choices::taken", ""});
  if (!op) return {};
  Stack stack = {std::string(c10::toString(type))};
  op->callBoxed(stack);
  Choices taken;
  for (const auto& each : stack.at(0).toGenericDict()) taken[each.key().toStringRef()] = each.value().toInt();
  return taken;
}

std::string taken_since(const Choices& before, c10::ScalarType type) {
  std::string names;
  for (const auto& [name, times] : choices(type)) {
    if (times > before.at(name)) names += fmt::format("; {}", name);
  }
  return names;
}

}  // namespace concord::ops::testing
