// The harness compares every kernel of every operator of the library "concord", whoever registered it, with the
// reference in fp64, and every derivative with that of the reference and with finite differences. A new kernel is
// tested automatically. CONCORD_PLATFORM selects the device whose kernels run in addition to the cpu's;
// CONCORD_TEST_REAL_SIZES=1 also runs the sizes of real models, and CONCORD_TEST_OPERATOR=rope only the operators whose
// name contains it.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "core/ops/testing/samples.h"
#include "core/torch/device.h"

namespace concord::ops::testing {
namespace {

using c10::DispatchKey;
using Stack = std::vector<c10::IValue>;

constexpr int kDraws = 24;

std::vector<c10::OperatorHandle> operators() {
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("concord::", 0) == 0) found.push_back(*c10::Dispatcher::singleton().findSchema(name));
  }
  return found;
}

// Returns whether the operator, or the choice, whose name starts with its operator's, is selected.
bool is_meant(const std::string& name) {
  const char* const said = std::getenv("CONCORD_TEST_OPERATOR");
  return said == nullptr || name.find(said) != std::string::npos;
}

std::vector<c10::OperatorHandle> meant_operators() {
  std::vector<c10::OperatorHandle> found = operators();
  std::erase_if(found, [](const c10::OperatorHandle& op) { return !is_meant(op.operator_name().name); });
  return found;
}

// The same arguments with their tensors changed by |change|.
template <class Change>
Stack with_tensors(const Stack& arguments, const Change& change) {
  Stack result;
  for (const c10::IValue& each : arguments) {
    if (each.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : each.toTensorVector()) list.push_back(change(tensor));
      result.emplace_back(list);
    } else {
      result.push_back(each.isTensor() && each.toTensor().defined() ? c10::IValue(change(each.toTensor())) : each);
    }
  }
  return result;
}

bool is_floating(const at::Tensor& tensor) { return c10::isFloatingType(tensor.scalar_type()); }

// Copies, so that kernels that write into their arguments do not see each other's results.
Stack wide(const Stack& arguments) {
  return with_tensors(arguments, [](const at::Tensor& t) { return is_floating(t) ? t.to(at::kDouble).clone() : t; });
}

// Returns the results of the operator and the arguments that it wrote.
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

// Returns the fraction of the rounding bound that |got| uses; NaN if it is NaN. |slack| and |has_nan|: see Sample.
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

// The slack of each output.
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

// Returns |slack|, and what a kernel on |device| is allowed in addition if that is Ascend's: some references consist
// of other operators, which have kernels there.
std::vector<at::Tensor> slack_of_kernel(c10::Device device, std::vector<at::Tensor> slack, const Sample& sample,
                                        const Stack& arguments, const std::vector<at::Tensor>& exact) {
  if (!device.is_privateuseone() || !sample.ascend_slack) return slack;
  const std::vector<at::Tensor> more = sample.ascend_slack(arguments, exact);
  for (size_t i = 0; i < more.size(); ++i) slack.at(i) = slack.at(i) + more[i];
  return slack;
}

// Returns the fraction of the bound that each output uses.
std::vector<double> expect_near(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& exact,
                                const std::vector<at::Tensor>& slack, bool has_nan) {
  std::vector<double> shares;
  EXPECT_EQ(got.size(), exact.size());
  for (size_t i = 0; i < std::min(got.size(), exact.size()); ++i) {
    EXPECT_EQ(got[i].sizes(), exact[i].sizes());
    if (got[i].sizes() != exact[i].sizes()) return shares;
    shares.push_back(share_of_bound(got[i], exact[i], slack.at(i), has_nan));
    EXPECT_LE(shares.back(), 1) << "output " << i << " " << got[i].toString() << " of " << got[i].sizes()
                                << " is off by up to "
                                << largest(got[i].to(exact[i].device(), at::kDouble) - exact[i].to(at::kDouble))
                                << ", which in some place is that much of what rounding explains";
  }
  return shares;
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

struct Kernel {
  DispatchKey key;
  c10::Device device;
};

// Returns whether the platform's device supports the types of the operator.
bool has_types_of(const c10::OperatorHandle& op) {
  return op.operator_name().name.rfind("concord::fp8_", 0) != 0 ||
         current_platform().capability(CONCORD_CAP_TORCH_FP8) != 0;
}

// The kernels to test: the reference and those of the cpu and of the platform's device.
std::vector<Kernel> kernels_of(const c10::OperatorHandle& op, c10::Device device) {
  std::vector<Kernel> found = {{DispatchKey::CompositeExplicitAutograd, c10::kCPU}};
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) found.push_back({DispatchKey::CPU, c10::kCPU});
  if (device.is_cpu() || !has_types_of(op)) return found;
  found.push_back({DispatchKey::CompositeExplicitAutograd, device});
  const DispatchKey key = c10::computeDispatchKey(std::nullopt, std::nullopt, device);
  if (op.hasKernelForDispatchKey(key)) found.push_back({key, device});
  return found;
}

c10::Device platform_device() { return torch_device(current_platform(), 0); }

// Runs before any test: libtorch checks once whether there is CUDA, and caches the result.
class LoadsThePlatform : public ::testing::Environment {
  void SetUp() override { platform_device(); }
};
const ::testing::Environment* const kLoads = ::testing::AddGlobalTestEnvironment(new LoadsThePlatform);

// The exact results and the rounding bounds are computed once for all kernels.
void check_kernels(const c10::OperatorHandle& op, c10::ScalarType type) {
  const SampleMaker& maker = samples().at(op.operator_name().name);
  const std::vector<Kernel> kernels = kernels_of(op, platform_device());
  const at::NoGradGuard no_grad;
  for (int seed = 1; seed <= kDraws; ++seed) {
    Draw draw(static_cast<uint64_t>(seed));
    const Sample sample = maker(draw, type);
    const auto exact = run(op, DispatchKey::CompositeExplicitAutograd, wide(sample.arguments));
    const auto slack = slack_of(sample, sample.arguments, exact, type);
    for (const Kernel& kernel : kernels) {
      SCOPED_TRACE(fmt::format("{} {} on {}, draw {}:{}", op.operator_name().name, toString(kernel.key),
                               kernel.device.str(), seed, text_of(sample.arguments)));
      const auto got =
          run(op, kernel.key,
              with_tensors(sample.arguments, [&](const at::Tensor& t) { return t.to(kernel.device).clone(); }));
      expect_near(got, exact, slack_of_kernel(kernel.device, slack, sample, sample.arguments, exact), sample.has_nan);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

class EveryOperator : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(EveryOperator, HasKernelsThatMatchTheReferenceInFp64) {
  for (const c10::OperatorHandle& op : meant_operators()) {
    ASSERT_TRUE(samples().contains(op.operator_name().name))
        << op.operator_name().name << " has no samples; register some in its test";
    ASSERT_TRUE(op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd))
        << op.operator_name().name << " has no reference";
    check_kernels(op, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EveryOperator, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& each) { return std::string(c10::toString(each.param)); });

TEST(EveryOperatorOfTheLibrary, IsOneOfThoseThatHaveSamples) {
  std::set<std::string> known;
  for (const c10::OperatorHandle& op : operators()) known.insert(op.operator_name().name);
  for (const auto& [name, maker] : samples()) EXPECT_TRUE(known.contains(name)) << name << " is no operator";
  EXPECT_GE(known.size(), 1u);
}

// ------------------------------------------------------------------------------------------------------- real sizes

bool wants_all_sizes() {
  const char* const said = std::getenv("CONCORD_TEST_REAL_SIZES");
  return said != nullptr && std::string(said) == "1";
}

// Returns a copy on |device| with the same strides and misalignment, by which kernels are chosen.
at::Tensor placed(const at::Tensor& tensor, c10::Device device) {
  int64_t end = tensor.storage_offset() + 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) end += (tensor.size(i) - 1) * tensor.stride(i);
  const at::Tensor place = at::empty({end}, tensor.options().device(device));
  return place.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()).copy_(tensor);
}

Stack wide_on(c10::Device device, const Stack& arguments) {
  return with_tensors(wide(arguments), [&](const at::Tensor& t) { return t.to(device); });
}

// How often the device's operator library chose each of its implementations for elements of |type|; empty if it does
// not report this (concord_choices::taken, see docs/operators.md).
using Choices = std::map<std::string, int64_t>;
Choices choices(c10::ScalarType type) {
  const auto op = c10::Dispatcher::singleton().findSchema({"concord_choices::taken", ""});
  if (!op) return {};
  Stack stack = {std::string(c10::toString(type))};
  op->callBoxed(stack);
  Choices taken;
  for (const auto& each : stack.at(0).toGenericDict()) taken[each.key().toStringRef()] = each.value().toInt();
  return taken;
}

// Returns the choices that were taken since |before|.
std::string taken_since(const Choices& before, c10::ScalarType type) {
  std::string names;
  for (const auto& [name, times] : choices(type)) {
    if (times > before.at(name)) names += fmt::format("; {}", name);
  }
  return names;
}

// In fp64 the host gives the exact results, so the device's reference is compared with the host's at every size. In the
// other types the device's reference in fp64 gives them, which is faster.
void check_real_size(const c10::OperatorHandle& op, const SampleMaker& maker, c10::ScalarType type) {
  const c10::Device device = platform_device();
  const c10::Device judge = type == at::kDouble ? c10::Device(c10::kCPU) : device;
  Draw draw(1);
  const Sample sample = maker(draw, type);
  const auto exact = run(op, DispatchKey::CompositeExplicitAutograd, wide_on(judge, sample.arguments));
  const Stack arguments = wide_on(judge, sample.arguments);
  const auto slack = slack_of(sample, arguments, exact, type);
  for (const Kernel& kernel : kernels_of(op, device)) {
    if (kernel.device.type() != device.type()) continue;
    const bool is_reference = kernel.key == DispatchKey::CompositeExplicitAutograd;
    const std::string what =
        fmt::format("{}{}{}", op.operator_name().name, is_reference ? " (reference)" : "", text_of(sample.arguments));
    SCOPED_TRACE(what);
    const Choices before = choices(type);
    const auto got = run(op, kernel.key,
                         with_tensors(sample.arguments, [&](const at::Tensor& t) { return placed(t, kernel.device); }));
    const auto allowed = slack_of_kernel(kernel.device, slack, sample, arguments, exact);
    const std::vector<double> shares = expect_near(got, exact, allowed, sample.has_nan);
    ::testing::Test::RecordProperty(what, fmt::format("{:g}", fmt::join(shares, " ")) + taken_since(before, type));
  }
}

// A kernel that throws does not prevent the other operators from being tested.
void check_real_sizes(const c10::OperatorHandle& op, const std::vector<SampleMaker>& makers, c10::ScalarType type) {
  const size_t count = wants_all_sizes() ? makers.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    try {
      check_real_size(op, makers[i], type);
    } catch (const std::exception& error) {
      ADD_FAILURE() << op.operator_name().name << ", real size " << i << ": " << error.what();
    }
  }
}

bool has_kernel_for(const c10::OperatorHandle& op, c10::Device device) {
  return op.hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

class EveryKernelOfTheDevice : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(EveryKernelOfTheDevice, MatchesTheReferenceInFp64AtRealSizes) {
  const c10::Device device = platform_device();
  if (!device.is_cpu() && !wants_all_sizes()) {
    GTEST_SKIP() << "samples of real sizes are for real devices; CONCORD_TEST_REAL_SIZES=1 runs them on this one";
  }
  const at::NoGradGuard no_grad;
  const Choices before = choices(GetParam());
  for (const c10::OperatorHandle& op : meant_operators()) {
    const auto found = real_sizes().find(op.operator_name().name);
    if (found != real_sizes().end()) {
      check_real_sizes(op, found->second, GetParam());
    } else {
      EXPECT_TRUE(device.is_cpu() || !has_kernel_for(op, device))
          << op.operator_name().name << " has a kernel for " << device.str() << " and no samples of real sizes";
    }
  }
  for (const auto& [name, times] : choices(GetParam())) {
    EXPECT_TRUE(times > before.at(name) || !is_meant(name))
        << "no sample of a real size met what the device has for: " << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, EveryKernelOfTheDevice,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& each) { return std::string(c10::toString(each.param)); });

// ------------------------------------------------------------------------------------------------------ derivatives

// Returns the operator's first result, times |weights|, summed: a scalar function of the arguments.
at::Tensor weighed(const at::Tensor& output, const at::Tensor& weights) { return (output * weights).sum(); }

struct Gradients {
  at::Tensor weights;
  std::vector<at::Tensor> of;  // by floating argument
};

template <class Call>
Gradients gradients(const Stack& arguments, const at::Tensor& weights, const Call& call) {
  std::vector<at::Tensor> leaves;
  Stack stack = with_tensors(arguments, [&](const at::Tensor& t) {
    if (!is_floating(t)) return t;
    leaves.push_back(t.detach().clone().requires_grad_(true));
    return leaves.back();
  });
  call(stack);
  const at::Tensor output = stack.at(0).toTensor();
  const auto found = torch::autograd::grad({weighed(output, weights)}, leaves, {}, std::nullopt, false,
                                           /*allow_unused=*/true);
  return {weights, {found.begin(), found.end()}};
}

// Returns d/dt of the function at arguments + t * direction, where |index| is the floating argument that varies. The
// five-point formula: its error is h^4 times the fifth derivative, 1e-12 here, and rounding adds 1e-16 / h.
double slope(const c10::OperatorHandle& op, const Stack& arguments, size_t index, const at::Tensor& direction,
             const at::Tensor& weights) {
  const at::NoGradGuard no_grad;
  const auto at_step = [&](double t) {
    size_t seen = 0;
    Stack stack = with_tensors(
        arguments, [&](const at::Tensor& x) { return is_floating(x) && seen++ == index ? x + t * direction : x; });
    op.callBoxed(stack);
    return weighed(stack.at(0).toTensor(), weights).item<double>();
  };
  constexpr double kStep = 1e-3;
  return (8 * (at_step(kStep) - at_step(-kStep)) - (at_step(2 * kStep) - at_step(-2 * kStep))) / (12 * kStep);
}

void check_derivative(const c10::OperatorHandle& op, uint64_t seed) {
  Draw draw(seed);
  const Sample sample = samples().at(op.operator_name().name)(draw, at::kDouble);
  SCOPED_TRACE(fmt::format("{}, draw {}:{}", op.operator_name().name, seed, text_of(sample.arguments)));
  Stack once = sample.arguments;
  op.callBoxed(once);
  const at::Tensor weights = draw.normal(once.at(0).toTensor().sizes().vec(), at::kDouble);
  const Gradients ours = gradients(sample.arguments, weights, [&](Stack& stack) { op.callBoxed(stack); });
  const Gradients theirs = gradients(sample.arguments, weights, [&](Stack& stack) {
    op.callBoxedForDispatchKey(DispatchKey::CompositeExplicitAutograd, stack);
  });
  for (size_t i = 0; i < ours.of.size(); ++i) {
    if (!ours.of[i].defined()) continue;  // an argument that the operator treats as a constant, like angles
    // The first result may not depend on an argument; its gradient may then be zeros.
    const at::Tensor right = theirs.of[i].defined() ? theirs.of[i] : at::zeros_like(ours.of[i]);
    const double size = largest(right);
    EXPECT_LE(largest(ours.of[i] - right), 1e-10 * (1 + size)) << "gradient " << i;
    const at::Tensor direction = draw.normal(ours.of[i].sizes().vec(), at::kDouble);
    const double expected = slope(op, sample.arguments, i, direction, weights);
    const double got = (ours.of[i] * direction).sum().item<double>();
    const double scale = std::sqrt(static_cast<double>(direction.numel())) * size + 1;
    EXPECT_NEAR(got, expected, 1e-7 * scale) << "gradient " << i << " along a random direction";
  }
}

TEST(EveryDerivative, IsThatOfTheReferenceAndOfFiniteDifferences) {
  int checked = 0;
  for (const c10::OperatorHandle& op : meant_operators()) {
    if (!op.hasKernelForDispatchKey(DispatchKey::Autograd)) continue;
    for (uint64_t seed = 1; seed <= kDraws && !HasFailure(); ++seed) check_derivative(op, seed);
    ++checked;
  }
  EXPECT_GE(checked, 1);
}

}  // namespace
}  // namespace concord::ops::testing
