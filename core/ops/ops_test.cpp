// The harness: every kernel of every operator of the library "concord", whoever registered it, against the reference in
// fp64; and every derivative against that of the reference and against finite differences. A new kernel is tested by
// existing. CONCORD_PLATFORM says which device's kernels run besides the cpu's.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/ops/testing/samples.h"
#include "core/torch/device.h"
#include "platform/loader/text.h"

namespace concord::ops::testing {
namespace {

using c10::DispatchKey;
using loader::cat;
using Stack = std::vector<c10::IValue>;

constexpr int kDraws = 24;

std::vector<c10::OperatorHandle> operators() {
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("concord::", 0) == 0) found.push_back(*c10::Dispatcher::singleton().findSchema(name));
  }
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

// Copies, so that kernels that write into their arguments do not meet each other's results.
Stack wide(const Stack& arguments) {
  return with_tensors(arguments, [](const at::Tensor& t) { return is_floating(t) ? t.to(at::kDouble).clone() : t; });
}

// What the operator gives: its results and the arguments that it wrote to.
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

// Half a unit in the last place of 1.
double half_unit(c10::ScalarType type) {
  switch (type) {
    case at::kDouble: return std::numeric_limits<double>::epsilon() / 2;
    case at::kFloat: return std::numeric_limits<float>::epsilon() / 2;
    case at::kBFloat16: return 1.0 / 256 / 2;
    case at::kHalf: return 1.0 / 1024 / 2;
    default: return 0;
  }
}

void expect_near(const at::Tensor& got, const at::Tensor& exact, const Sample& sample, size_t output) {
  ASSERT_EQ(got.sizes(), exact.sizes());
  if (got.numel() == 0) return;
  const double in_sums = half_unit(got.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  double size = largest(exact);
  if (output < sample.magnitudes.size()) size = std::max(size, sample.magnitudes[output]);
  const at::Tensor right = exact.to(at::kCPU, at::kDouble);
  const at::Tensor off = (got.to(at::kCPU, at::kDouble) - right).abs();
  const at::Tensor allowed = 2 * half_unit(got.scalar_type()) * right.abs() + sample.roundings * in_sums * size;
  const double share = (off / (allowed + 1e-300)).max().item<double>();
  EXPECT_LE(share, 1) << "output " << output << " " << got.toString() << " of " << got.sizes() << " is off by up to "
                      << off.max().item<double>() << ", which is " << share << " of what rounding explains";
}

std::string text_of(const Stack& arguments) {
  std::string text;
  for (const c10::IValue& each : arguments) {
    if (each.isTensor() && each.toTensor().defined()) {
      text +=
          cat(" ", c10::toString(each.toTensor().scalar_type()), "[", loader::join(each.toTensor().sizes(), ","), "]");
    } else if (each.isInt()) {
      text += cat(" ", each.toInt());
    } else if (each.isDouble()) {
      text += cat(" ", each.toDouble());
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

// The kernels to test: the reference and those of the cpu and of the platform's device.
std::vector<Kernel> kernels_of(const c10::OperatorHandle& op, c10::Device device) {
  std::vector<Kernel> found = {{DispatchKey::CompositeExplicitAutograd, c10::kCPU}};
  if (op.hasKernelForDispatchKey(DispatchKey::CPU)) found.push_back({DispatchKey::CPU, c10::kCPU});
  if (device.is_cpu()) return found;
  found.push_back({DispatchKey::CompositeExplicitAutograd, device});
  const DispatchKey key = c10::computeDispatchKey(std::nullopt, std::nullopt, device);
  if (op.hasKernelForDispatchKey(key)) found.push_back({key, device});
  return found;
}

c10::Device platform_device() { return torch_device(current_platform(), 0); }

// Before any test: libtorch looks once whether there is CUDA, and keeps to what it saw.
class LoadsThePlatform : public ::testing::Environment {
  void SetUp() override { platform_device(); }
};
const ::testing::Environment* const kLoads = ::testing::AddGlobalTestEnvironment(new LoadsThePlatform);

void check_kernels(const c10::OperatorHandle& op, c10::ScalarType type) {
  const SampleMaker& maker = samples().at(op.operator_name().name);
  const at::NoGradGuard no_grad;
  for (const Kernel& kernel : kernels_of(op, platform_device())) {
    for (int seed = 1; seed <= kDraws; ++seed) {
      Draw draw(static_cast<uint64_t>(seed));
      const Sample sample = maker(draw, type);
      SCOPED_TRACE(cat(op.operator_name().name, " ", toString(kernel.key), " on ", kernel.device.str(), ", draw ", seed,
                       ":", text_of(sample.arguments)));
      const auto exact = run(op, DispatchKey::CompositeExplicitAutograd, wide(sample.arguments));
      const auto got =
          run(op, kernel.key,
              with_tensors(sample.arguments, [&](const at::Tensor& t) { return t.to(kernel.device).clone(); }));
      ASSERT_EQ(got.size(), exact.size());
      for (size_t i = 0; i < got.size(); ++i) expect_near(got[i], exact[i], sample, i);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

class EveryOperator : public ::testing::TestWithParam<c10::ScalarType> {};

TEST_P(EveryOperator, HasKernelsThatMatchTheReferenceInFp64) {
  for (const c10::OperatorHandle& op : operators()) {
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

// ------------------------------------------------------------------------------------------------------ derivatives

// The operator's first result, times |weights|, summed: a function of the arguments with one number as result.
at::Tensor weighed(const at::Tensor& output, const at::Tensor& weights) { return (output * weights).sum(); }

struct Gradients {
  at::Tensor weights;
  std::vector<at::Tensor> of;  // of each floating argument
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

// d/dt of the function at arguments + t * direction, where |index| numbers the floating argument that moves. The
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
  SCOPED_TRACE(cat(op.operator_name().name, ", draw ", seed, ":", text_of(sample.arguments)));
  Stack once = sample.arguments;
  op.callBoxed(once);
  const at::Tensor weights = draw.normal(once.at(0).toTensor().sizes().vec(), at::kDouble);
  const Gradients ours = gradients(sample.arguments, weights, [&](Stack& stack) { op.callBoxed(stack); });
  const Gradients theirs = gradients(sample.arguments, weights, [&](Stack& stack) {
    op.callBoxedForDispatchKey(DispatchKey::CompositeExplicitAutograd, stack);
  });
  for (size_t i = 0; i < ours.of.size(); ++i) {
    if (!ours.of[i].defined()) continue;  // an argument that the operator takes as a constant, like angles
    const double size = largest(theirs.of[i]);
    EXPECT_LE(largest(ours.of[i] - theirs.of[i]), 1e-10 * (1 + size)) << "gradient " << i;
    const at::Tensor direction = draw.normal(ours.of[i].sizes().vec(), at::kDouble);
    const double expected = slope(op, sample.arguments, i, direction, weights);
    const double got = (ours.of[i] * direction).sum().item<double>();
    const double scale = std::sqrt(static_cast<double>(direction.numel())) * size + 1;
    EXPECT_NEAR(got, expected, 1e-7 * scale) << "gradient " << i << " along a random direction";
  }
}

TEST(EveryDerivative, IsThatOfTheReferenceAndOfFiniteDifferences) {
  int checked = 0;
  for (const c10::OperatorHandle& op : operators()) {
    if (!op.hasKernelForDispatchKey(DispatchKey::Autograd)) continue;
    for (uint64_t seed = 1; seed <= kDraws && !HasFailure(); ++seed) check_derivative(op, seed);
    ++checked;
  }
  EXPECT_GE(checked, 1);
}

}  // namespace
}  // namespace concord::ops::testing
