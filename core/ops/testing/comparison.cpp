#include "core/ops/comparison.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>

#include "core/ops/testing/compare.h"
#include "core/torch/device.h"

namespace concord::ops {
namespace {

using namespace testing;

// A sample with its exact results on the host, which all kernels are compared with.
struct Judged {
  Sample sample;
  Stack wide_arguments;
  std::vector<at::Tensor> exact;
  std::vector<at::Tensor> slack;
};

Judged judge(const c10::OperatorHandle& op, const SampleMaker& maker, c10::ScalarType type) {
  Draw draw(1);
  Judged judged{.sample = maker(draw, type), .wide_arguments = {}, .exact = {}, .slack = {}};
  judged.wide_arguments = wide(judged.sample.arguments);
  judged.exact = run(op, c10::DispatchKey::CompositeExplicitAutograd, wide(judged.sample.arguments));
  judged.slack = slack_of(judged.sample, judged.wide_arguments, judged.exact, type);
  return judged;
}

void compare_kernel(const c10::OperatorHandle& op, const Kernel& kernel, const Judged& judged,
                    OperatorComparison* comparison) {
  const auto got =
      run(op, kernel.key,
          with_tensors(judged.sample.arguments, [&](const at::Tensor& t) { return placed(t, kernel.device); }));
  const auto allowed = slack_of_kernel(kernel.device, judged.slack, judged.sample, judged.wide_arguments, judged.exact);
  if (got.size() != judged.exact.size()) {
    comparison->error = "has another number of outputs than the reference";
    return;
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].sizes() != judged.exact[i].sizes()) {
      comparison->error = "an output has another shape than the reference's";
      return;
    }
    comparison->bound_used.push_back(share_of_bound(got[i], judged.exact[i], allowed.at(i), judged.sample.has_nan));
  }
}

void compare_sample(const c10::OperatorHandle& op, const SampleMaker& maker, c10::ScalarType type,
                    const std::function<void(const OperatorComparison&)>& visit) {
  OperatorComparison row{.op = op.operator_name().name,
                         .kernel = "",
                         .type = c10::toString(type),
                         .arguments = "",
                         .bound_used = {},
                         .choices = "",
                         .error = ""};
  const c10::Device device = torch_device(current_platform(), 0);
  Judged judged;
  try {
    judged = judge(op, maker, type);
  } catch (const std::exception& error) {
    row.error = std::string("the reference on the host: ") + error.what();
    return visit(row);
  }
  row.arguments = text_of(judged.sample.arguments);
  for (const Kernel& kernel : kernels_of(op, device)) {
    if (kernel.device.type() != device.type()) continue;
    OperatorComparison each = row;
    each.kernel = kernel.is_reference() ? "reference" : "own";
    const Choices before = choices(type);
    try {
      compare_kernel(op, kernel, judged, &each);
      each.choices = taken_since(before, type);
    } catch (const std::exception& error) {
      each.error = error.what();
    }
    visit(each);
  }
}

}  // namespace

// NaN is not <= 1.
bool OperatorComparison::is_right() const {
  return error.empty() && std::ranges::all_of(bound_used, [](double share) { return share <= 1; });
}

std::vector<std::string> compare_operators(const ComparisonOptions& options,
                                           const std::function<void(const OperatorComparison&)>& visit) {
  torch_device(current_platform(), 0);  // loads the device's operators
  const at::NoGradGuard no_grad;
  std::vector<std::string> without_samples;
  for (const c10::OperatorHandle& op : operators()) {
    const std::string& name = op.operator_name().name;
    if (name.find(options.filter) == std::string::npos) continue;
    const auto found = real_sizes().find(name);
    if (found == real_sizes().end()) {
      without_samples.push_back(name);
      continue;
    }
    const size_t count = options.all_sizes ? found->second.size() : 1;
    for (const c10::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (size_t i = 0; i < count; ++i) compare_sample(op, found->second[i], type, visit);
    }
  }
  std::ranges::sort(without_samples);
  return without_samples;
}

}  // namespace concord::ops
