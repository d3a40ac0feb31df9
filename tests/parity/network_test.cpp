// A small network on the device of the platform: forward, backward, the sum of the gradients over two ranks on a side
// stream that events order with libtorch's own, and AdamW. The reference is libtorch on the cpu. CONCORD_PLATFORM
// selects the platform; the program links only libtorch_cpu, so that everything else must come from the plugin.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"
#include "tests/processes/spawn.hpp"

namespace concord {
namespace {

constexpr int kWorld = 2;
constexpr int64_t kRows = 48;
constexpr int64_t kInputs = 33;
constexpr int64_t kHidden = 64;
constexpr int64_t kClasses = 17;

struct Network {
  at::Tensor first;   // [hidden, inputs]
  at::Tensor second;  // [classes, hidden]
};

// The training data of rank |rank|.
struct Batch {
  at::Tensor x;
  at::Tensor labels;
};

struct Result {
  at::Tensor loss;
  at::Tensor first_gradient;
  at::Tensor second_gradient;
};

at::Generator generator(uint64_t seed) {
  at::Generator made = at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).clone();
  made.set_current_seed(seed);
  return made;
}

Network make_network() {
  const at::Generator random = generator(1);
  return {at::randn({kHidden, kInputs}, random), at::randn({kClasses, kHidden}, random)};
}

Batch make_batch(int rank, c10::Device device) {
  const at::Generator random = generator(100 + static_cast<uint64_t>(rank));
  return {at::randn({kRows, kInputs}, random).to(device), at::randint(kClasses, {kRows}, random, at::kLong).to(device)};
}

Network copy_to(const Network& network, c10::Device device) {
  return {network.first.to(device, /*non_blocking=*/false, /*copy=*/true), network.second.to(device, false, true)};
}

// Runs forward and backward. The weights are unchanged.
Result train(const Network& network, const Batch& batch) {
  const at::Tensor first = network.first.detach().requires_grad_();
  const at::Tensor second = network.second.detach().requires_grad_();
  const at::Tensor hidden = at::silu(at::linear(batch.x, first));
  const at::Tensor loss = at::cross_entropy_loss(at::linear(hidden, second), batch.labels);
  loss.backward();
  return {loss.detach(), first.grad(), second.grad()};
}

// AdamW of one weight. |kEpsilon| is large enough that a gradient's rounding error cannot change the sign of a step.
class AdamW {
 public:
  explicit AdamW(at::Tensor weight)
      : weight_(std::move(weight)), m_(at::zeros_like(weight_)), v_(at::zeros_like(weight_)) {}

  void step(const at::Tensor& gradient) {
    ++steps_;
    weight_.mul_(1 - kRate * kDecay);
    m_.lerp_(gradient, 1 - kBeta1);
    v_.mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
    const at::Tensor scale = at::sqrt(v_ / (1 - std::pow(kBeta2, steps_))).add_(kEpsilon);
    weight_.addcdiv_(m_, scale, -kRate / (1 - std::pow(kBeta1, steps_)));
  }

 private:
  static constexpr double kRate = 0.01, kDecay = 0.1, kBeta1 = 0.9, kBeta2 = 0.99, kEpsilon = 0.1;
  at::Tensor weight_, m_, v_;
  int steps_ = 0;
};

// Shares the id that rank 0 creates, through a pipe that was opened before the fork.
UniqueId share_id(const Platform& platform, int rank, const int (&ends)[2]) {
  UniqueId id = create_unique_id(platform);
  const auto bytes = static_cast<ssize_t>(id.size());
  if (rank == 0) {
    EXPECT_EQ(::write(ends[1], id.data(), id.size()), bytes);
  } else {
    EXPECT_EQ(::read(ends[0], id.data(), id.size()), bytes);
  }
  return id;
}

// Sums over the ranks, on its own stream between two events. Outlives the work it has queued.
class SideSum {
 public:
  SideSum(const Device& device, const Communicator& comm)
      : device_(device), comm_(comm), side_(device), produced_(device), summed_(device) {}
  ~SideSum() { side_.synchronize(); }
  SideSum(const SideSum&) = delete;
  SideSum& operator=(const SideSum&) = delete;

  // Later work of libtorch's own stream runs after the sum.
  at::Tensor of(const at::Tensor& gradient) {
    const at::Tensor sum = at::empty_like(gradient);
    const Stream compute = torch_stream(device_);
    produced_.record(compute);
    side_.wait(produced_.native());
    comm_.all_reduce(side_, gradient.data_ptr(), sum.data_ptr(), gradient.numel(), DType::kF32, ReduceOp::kSum);
    summed_.record(side_);
    compute.wait(summed_.native());
    return sum;
  }

 private:
  const Device& device_;
  const Communicator& comm_;
  Stream side_;
  Event produced_, summed_;
};

// Compares |a - b| with the size of b. fp32 dot products of at most 64 terms, two in sequence, a softmax and two ranks:
// about 3 * 64 * 2^-24 = 1.2e-5 of the sum of the absolute values; 1e-4 of the largest element leaves room for
// cancellation, while a missing reduction, a wrong order or a missing wait causes an error of the size of the values.
void expect_near(const at::Tensor& got, const at::Tensor& wanted, const char* what) {
  const double scale = wanted.abs().max().item<double>();
  EXPECT_LE((got - wanted).abs().max().item<double>(), 1e-4 * scale) << what << ", largest " << scale;
}

// The parts of a rank that both tests need.
struct Rank {
  Rank(int index, const int (&ends)[2])
      : platform((prepare(index), current_platform())),
        device(platform, index % platform.device_count()),
        where(torch_device(platform, device.index())),
        comm(device, kWorld, index, share_id(platform, index, ends)) {}

  static void prepare(int index) {  // several ranks on one GPU, over loopback
    ::setenv("NCCL_HOSTID", ("rank" + std::to_string(index)).c_str(), 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::setenv("NCCL_IB_DISABLE", "1", 1);
  }

  Platform platform;
  Device device;
  c10::Device where;
  Communicator comm;
};

void sum_gradients(int index, const int (&ends)[2]) {
  const Rank rank(index, ends);
  const DeviceGuard current(rank.device);
  const Network network = make_network();
  const Network mine = copy_to(network, rank.where);
  const Batch batch = make_batch(index, rank.where);
  SideSum side(rank.device, rank.comm);
  Result sums{};
  for (int round = 0; round < 20; ++round) {
    const Result result = train(mine, batch);
    const at::Tensor first = side.of(result.first_gradient) * 2;  // queued by libtorch after the collective
    const at::Tensor second = side.of(result.second_gradient) * 2;
    sums = {result.loss.cpu(), first.cpu(), second.cpu()};
  }
  const Result zero = train(network, make_batch(0, c10::kCPU));
  const Result one = train(network, make_batch(1, c10::kCPU));
  expect_near(sums.loss, index == 0 ? zero.loss : one.loss, "loss");
  expect_near(sums.first_gradient, (zero.first_gradient + one.first_gradient) * 2, "gradient of the first layer");
  expect_near(sums.second_gradient, (zero.second_gradient + one.second_gradient) * 2, "gradient of the second layer");
  std::printf("platform %s, libtorch's device %s: loss %.7f\n", std::string(rank.platform.label()).c_str(),
              rank.where.str().c_str(), sums.loss.item<double>());
}

// Runs some steps of AdamW on the mean gradient that |gradients| returns for the weights of the step.
template <class Gradients>
void optimise(const Network& network, Gradients gradients) {
  AdamW first(network.first);
  AdamW second(network.second);
  for (int step = 0; step < 5; ++step) {
    const Result mean = gradients(network);
    first.step(mean.first_gradient);
    second.step(mean.second_gradient);
  }
}

void train_with_adamw(int index, const int (&ends)[2]) {
  const Rank rank(index, ends);
  const DeviceGuard current(rank.device);
  const Network mine = copy_to(make_network(), rank.where);
  const Batch batch = make_batch(index, rank.where);
  SideSum side(rank.device, rank.comm);
  optimise(mine, [&](const Network& network) {
    const Result result = train(network, batch);
    return Result{result.loss, side.of(result.first_gradient) / kWorld, side.of(result.second_gradient) / kWorld};
  });
  const Network wanted = make_network();
  optimise(wanted, [](const Network& network) {
    const Result zero = train(network, make_batch(0, c10::kCPU));
    const Result one = train(network, make_batch(1, c10::kCPU));
    return Result{zero.loss, (zero.first_gradient + one.first_gradient) / kWorld,
                  (zero.second_gradient + one.second_gradient) / kWorld};
  });
  // A step changes a weight by about the rate, 0.01; a missing one would cause a difference of that size.
  expect_near(mine.first.cpu(), wanted.first, "first layer after AdamW");
  expect_near(mine.second.cpu(), wanted.second, "second layer after AdamW");
}

void run_on_two_ranks(void (*body)(int, const int (&)[2])) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto outcomes = tests::run_ranks(kWorld, [&](int rank) { body(rank, ends); });
  for (const tests::Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.ok()) << outcome.describe();
    std::printf("%s", outcome.output.c_str());
  }
}

TEST(NetworkParity, ForwardBackwardAndSummedGradientsOfTwoRanksEqualTheCpus) { run_on_two_ranks(&sum_gradients); }

TEST(NetworkParity, WeightsAfterStepsOfAdamWOnTwoRanksEqualTheCpus) { run_on_two_ranks(&train_with_adamw); }

}  // namespace
}  // namespace concord
