// Silent data corruption in real processes: single flipped bits, and the reported tensor and rank.
#include "core/data_parallel/replica_check.h"

#include <gmock/gmock.h>

#include <random>

#include "core/data_parallel/finalize_grads.h"
#include "core/optim/optimizer.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/small_network.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kFlips = 100;

void flip(const at::Tensor& tensor, uint64_t bit) {
  static_cast<uint8_t*>(tensor.data_ptr())[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
}

void train_a_step(DistributedDataParallel& ddp, SmallNetwork& network, uint64_t seed) {
  ddp.begin_step(1);
  network.loss(seed).backward();
  finalize_grads(ddp);
  Optimizer(ddp, {}).step({.lr = 1e-3});
}

// The same on all ranks: a bit of a parameter or, if replicated, of a gradient, and the rank.
struct Flip {
  const GradBuffer* buffer;
  BucketPlan::Slot slot;
  bool in_grads;
  uint64_t bit;
  int64_t rank;

  at::Tensor tensor() const {
    return GradBuffer::part(in_grads ? buffer->grads() : buffer->values(), {slot.begin, slot.end});
  }
  std::string name() const {
    return (in_grads ? "the gradient of " : "the parameter ") + buffer->parameters()[slot.parameter]->spec.name;
  }
};

Flip random_flip(const DistributedDataParallel& ddp, std::mt19937_64& random) {
  const std::vector<const GradBuffer*> buffers = ddp.buffers();
  const GradBuffer* buffer = buffers[random() % buffers.size()];
  const auto& buckets = buffer->plan().buckets;
  const auto& slots = buckets[random() % buckets.size()].slots;
  Flip made{buffer, slots[random() % slots.size()], buffer->plan().shards == 1 && random() % 2 == 0, 0, 0};
  made.bit = random() % (8 * made.tensor().nbytes());
  made.rank = static_cast<int64_t>(random() % static_cast<uint64_t>(ddp.job().world()));
  return made;
}

void expect_flips_found(ParallelContext& job, at::ScalarType type, bool zero, bool overlap, int64_t bucket) {
  SmallNetwork network(type);
  DistributedDataParallel ddp(
      {network.parameters()}, job,
      {.use_distributed_optimizer = zero, .overlap_param_gather = overlap, .ddp_bucket_size = bucket});
  ReplicaCheck check(ddp);
  train_a_step(ddp, network, 10 + static_cast<uint64_t>(job.rank()));
  EXPECT_EQ(check.run(), std::nullopt) << "before the first flip";
  std::mt19937_64 random(7);
  for (int i = 0; i < kFlips; ++i) {
    const Flip made = random_flip(ddp, random);
    if (job.rank() == made.rank) flip(made.tensor(), made.bit);
    const std::optional<ReplicaDifference> found = check.run();
    if (job.rank() == made.rank) flip(made.tensor(), made.bit);
    ASSERT_TRUE(found) << made.name() << ", bit " << made.bit;
    EXPECT_THAT(found->text, HasSubstr(" in " + made.name()));
    EXPECT_THAT(found->text, ::testing::Not(HasSubstr("more")));
    if (job.world() > 2) {
      EXPECT_EQ(found->culprit, made.rank);
      EXPECT_THAT(found->text, HasSubstr("rank " + std::to_string(made.rank) + " differs from ranks "));
    } else {
      EXPECT_EQ(found->culprit, std::nullopt);
      EXPECT_THAT(found->text, HasSubstr("rank 0 and rank 1 differ"));
    }
  }
  EXPECT_EQ(check.run(), std::nullopt) << "all flips undone";
}

TEST(ReplicaCheck, EveryFlippedBitIsFoundWithItsTensorAndRank) {
  for (const int world : {2, 3, 4}) {
    expect_job(world, {}, [](ParallelContext& job) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        expect_flips_found(job, type, /*zero=*/false, /*overlap=*/false, /*bucket=*/0);
        expect_flips_found(job, type, /*zero=*/true, /*overlap=*/job.world() == 3, /*bucket=*/100);
      }
    });
  }
}

TEST(ReplicaCheck, PaddingThatDiffersIsFoundToo) {
  expect_job(3, {}, [](ParallelContext& job) {
    SmallNetwork network;
    DistributedDataParallel ddp({network.parameters()}, job);
    ReplicaCheck check(ddp);
    const GradBuffer& buffer = *ddp.buffers()[0];
    const int64_t end = buffer.plan().buckets[0].slots[0].end;
    ASSERT_LT(end, buffer.plan().buckets[0].slots[1].begin) << "there is padding";
    if (job.rank() == 1) flip(buffer.values().narrow(0, end, 1), 3);
    const std::optional<ReplicaDifference> found = check.run();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->culprit, 1);
    EXPECT_THAT(found->text, HasSubstr("rank 1 differs from ranks 0 and 2 in the padding of a bucket"));
  });
}

// With two data-parallel and two tensor-parallel ranks a norm has four replicas, and a sharded weight two.
TEST(ReplicaCheck, ParametersThatTensorParallelRanksRepeatHaveAMajority) {
  expect_job(4, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    SmallNetwork network;
    network.parameters()[2]->spec.replicated_over = {GroupKind::tp, GroupKind::dp_cp};
    DistributedDataParallel ddp({network.parameters()}, job);
    ReplicaCheck check(ddp);
    EXPECT_EQ(check.run(), std::nullopt);
    const at::Tensor norm = network.parameters()[2]->value, w2 = network.parameters()[3]->value;
    if (job.rank() == 3) flip(norm, 17);
    std::optional<ReplicaDifference> found = check.run();
    if (job.rank() == 3) flip(norm, 17);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->text, "rank 3 differs from ranks 0, 1 and 2 in the parameter norm");
    EXPECT_EQ(found->culprit, 3);
    if (job.rank() == 3) flip(w2, 0);
    found = check.run();
    ASSERT_TRUE(found);
    EXPECT_EQ(found->text, "rank 1 and rank 3 differ in the parameter w2") << "on ranks 0 and 2 as well";
    EXPECT_EQ(found->culprit, std::nullopt);
  });
}

TEST(ReplicaCheck, EveryTensorThatDiffersIsCounted) {
  expect_job(3, {}, [](ParallelContext& job) {
    SmallNetwork network;
    DistributedDataParallel ddp({network.parameters()}, job, {.ddp_bucket_size = 100});
    if (job.rank() == 2) {
      for (Parameter* parameter : network.parameters()) flip(parameter->value, 5);
    }
    const std::optional<ReplicaDifference> found = ReplicaCheck(ddp).run();
    ASSERT_TRUE(found);
    EXPECT_THAT(found->text, AllOf(HasSubstr("rank 2 differs from ranks 0 and 1"), HasSubstr("and 3 more tensors")));
  });
}

}  // namespace
}  // namespace concord::tests
