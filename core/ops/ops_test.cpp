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

#include "core/ops/testing/compare.h"
#include "core/torch/device.h"

namespace concord::ops::testing {
namespace {

using c10::DispatchKey;

constexpr int kDraws = 24;

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
    const std::string what = fmt::format("{}{}{}", op.operator_name().name, kernel.is_reference() ? " (reference)" : "",
                                         text_of(sample.arguments));
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
