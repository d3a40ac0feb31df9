// A small network on the device that the platform names: forward, backward, and the sum of the gradients over two ranks
// on a side stream that events order with libtorch's own. The truth is libtorch on the cpu. CONCORD_PLATFORM chooses the
// platform; the program links libtorch_cpu alone, so that what else is needed must come from the plugin.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

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

// Forward and backward of rank |rank|'s own rows on |device|.
Result train(const Network& network, int rank, c10::Device device) {
  const at::Generator random = generator(100 + static_cast<uint64_t>(rank));
  const at::Tensor x = at::randn({kRows, kInputs}, random).to(device);
  const at::Tensor labels = at::randint(kClasses, {kRows}, random, at::kLong).to(device);
  const at::Tensor first = network.first.to(device, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  const at::Tensor second = network.second.to(device, false, true).requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(at::linear(at::silu(at::linear(x, first)), second), labels);
  loss.backward();
  return {loss.detach(), first.grad(), second.grad()};
}

// The id that rank 0 makes, through a pipe that was there before the processes.
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

// The sum of |gradient| over the ranks, on a stream of its own between two events.
at::Tensor sum_over_ranks(const Device& device, const Communicator& comm, const at::Tensor& gradient) {
  const at::Tensor sum = at::empty_like(gradient);
  const Stream compute = torch_stream(device);
  const Stream side(device);
  Event produced(device);
  Event summed(device);
  produced.record(compute);
  side.wait(produced.native());
  comm.all_reduce(side, gradient.data_ptr(), sum.data_ptr(), gradient.numel(), DType::kF32, ReduceOp::kSum);
  summed.record(side);
  compute.wait(summed.native());
  const at::Tensor doubled = sum * 2;  // queued by libtorch behind the collective, on its own stream
  const at::Tensor on_host = doubled.cpu();
  side.synchronize();
  return on_host;
}

// |a - b| against the size of b. fp32 dot products of at most 64 terms, two of them behind each other, a softmax and two
// ranks: about 3 * 64 * 2^-24 = 1.2e-5 of the sum of the absolute values; 1e-4 of the largest element leaves room for
// cancellation, while a forgotten sum, a wrong order or a missing wait is off by the size of the values.
void expect_near(const at::Tensor& got, const at::Tensor& wanted, const char* what) {
  const double scale = wanted.abs().max().item<double>();
  EXPECT_LE((got - wanted).abs().max().item<double>(), 1e-4 * scale) << what << ", largest " << scale;
}

void one_rank(int rank, const int (&ends)[2]) {
  ::setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);  // several ranks on one GPU, over loopback
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_IB_DISABLE", "1", 1);
  const Platform platform = current_platform();
  const Device device(platform, rank % platform.device_count());
  const DeviceGuard current(device);
  const c10::Device where = torch_device(platform, device.index());
  const Communicator comm(device, kWorld, rank, share_id(platform, rank, ends));
  const Network network = make_network();
  Result sums{};
  for (int round = 0; round < 20; ++round) {
    const Result mine = train(network, rank, where);
    sums = {mine.loss.cpu(), sum_over_ranks(device, comm, mine.first_gradient), sum_over_ranks(device, comm, mine.second_gradient)};
  }
  const Result zero = train(network, 0, c10::kCPU);
  const Result one = train(network, 1, c10::kCPU);
  expect_near(sums.loss, rank == 0 ? zero.loss : one.loss, "loss");
  expect_near(sums.first_gradient, (zero.first_gradient + one.first_gradient) * 2, "gradient of the first layer");
  expect_near(sums.second_gradient, (zero.second_gradient + one.second_gradient) * 2, "gradient of the second layer");
  std::printf("platform %s, libtorch's device %s: loss %.7f\n", std::string(platform.label()).c_str(), where.str().c_str(),
              sums.loss.item<double>());
}

TEST(NetworkParity, ForwardBackwardAndSummedGradientsOfTwoRanksEqualTheCpus) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto outcomes = tests::run_ranks(kWorld, [&](int rank) { one_rank(rank, ends); });
  for (const tests::Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.ok()) << outcome.describe();
    std::printf("%s", outcome.output.c_str());
  }
}

}  // namespace
}  // namespace concord
