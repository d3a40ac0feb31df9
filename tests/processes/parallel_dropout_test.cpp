// Dropout in a network under tensor parallelism, in real processes: sharded tensors draw from the model-parallel
// stream, different on each rank, replicated ones from the default stream, the same on all. Data-parallel ranks draw
// the same numbers. The network is y = dropout(row(dropout(column(x)))).
//
// The reference has no random numbers: it multiplies the whole network, in fp64 on one rank, by the masks that the
// ranks drew. Everything is a sum of products, so the bound is (number of roundings) x (unit roundoff) x (magnitudes).
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "core/ops/dropout.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/parallel_linear.h"
#include "core/parallel/recompute.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {
namespace {

constexpr int64_t kTokens = 24, kIn = 20, kMiddle = 32, kOut = 16;
constexpr double kInnerShare = 0.25, kOuterShare = 0.5;  // dropped fractions

struct NetworkOutcome {
  at::Tensor y, x, w1, w2;  // the result, then gradients; gathered over the tensor-parallel group, on the cpu
};

// The dropout masks of a rank: 0 for dropped elements.
struct Masks {
  at::Tensor inner;  // [tokens, hidden / n]: this rank's features
  at::Tensor outer;  // [tokens, out], or this rank's tokens under sequence parallelism
};

class Network {
 public:
  Network(ParallelContext& job, bool sequence_parallel)
      : job_(job),
        group_(job.group(GroupKind::tp)),
        sequence_parallel_(sequence_parallel),
        x_(leaf(own_tokens(sample({kTokens, kIn}, 1)))),
        w1_(leaf(own_part(sample({kMiddle, kIn}, 2), group_, 0))),
        w2_(leaf(own_part(sample({kOut, kMiddle}, 3), group_, 1))) {}

  // Returns the masks of the next run, by dropping from ones. The streams are reset afterwards.
  Masks masks() {
    const auto replay = job_.rng().replay(job_.rng().save());
    const at::Tensor inner = dropped(here(at::ones({kTokens, w1_.size(0)}, at::kDouble)), kInnerShare, true);
    const at::Tensor outer =
        dropped(own_tokens(here(at::ones({kTokens, kOut}, at::kDouble))), kOuterShare, sequence_parallel_);
    return {inner, outer};
  }

  NetworkOutcome run(bool recomputed) {
    const auto forward = [this](const std::vector<at::Tensor>& in) {
      const ParallelLinearOptions options{.sequence_parallel = sequence_parallel_};
      const at::Tensor h = dropped(column_parallel_linear(in[0], w1_, {}, group_, options), kInnerShare, true);
      const at::Tensor y = row_parallel_linear(h, w2_, {}, group_, options);
      return std::vector<at::Tensor>{dropped(y, kOuterShare, sequence_parallel_)};
    };
    const at::Tensor y = recomputed ? recompute(forward, {x_}, job_.rng())[0] : forward({x_})[0];
    y.backward(own_tokens(here(sample({kTokens, kOut}, 4))));
    return {all_tokens(y.detach()), all_tokens(x_.grad()), gather(w1_.grad(), group_, 0).take().cpu(),
            gather(w2_.grad(), group_, 1).take().cpu()};
  }

  at::Tensor all_tokens(const at::Tensor& x) const {
    return (sequence_parallel_ ? gather(x, group_, 0).take() : x).cpu();
  }

 private:
  static at::Tensor leaf(const at::Tensor& x) { return here(x).contiguous().clone().requires_grad_(true); }
  at::Tensor own_tokens(const at::Tensor& x) const { return sequence_parallel_ ? own_part(x, group_, 0) : x; }

  // |own|: each rank has different elements, so each draws different numbers.
  at::Tensor dropped(const at::Tensor& x, double p, bool own) {
    const auto scope = job_.rng().fork(own ? kModelParallelRng : kDefaultRng);
    return dropout(x, p, job_.rng().current());
  }

  ParallelContext& job_;
  ProcessGroup& group_;
  bool sequence_parallel_;
  at::Tensor x_, w1_, w2_;
};

// The whole network with given factors instead of dropout. With |magnitudes| every number is replaced by its absolute
// value.
NetworkOutcome reference(const at::Tensor& inner, const at::Tensor& outer, bool magnitudes) {
  const auto leaf = [&](const at::Tensor& x) { return (magnitudes ? x.abs() : x.clone()).requires_grad_(true); };
  const at::Tensor x = leaf(sample({kTokens, kIn}, 1)), w1 = leaf(sample({kMiddle, kIn}, 2)),
                   w2 = leaf(sample({kOut, kMiddle}, 3));
  const at::Tensor y = at::linear(at::linear(x, w1).mul(inner), w2).mul(outer);
  const at::Tensor grad = sample({kTokens, kOut}, 4);
  y.backward(magnitudes ? grad.abs() : grad);
  return {y.detach(), x.grad(), w1.grad(), w2.grad()};
}

void expect_within(const char* what, const at::Tensor& got, const at::Tensor& wanted, const at::Tensor& magnitude) {
  // Any summand is rounded at most once for each term of the sums that contain it, and once more for each product.
  const double unit = 2.0 * static_cast<double>(kIn + kMiddle + kOut + kTokens + 8) * rounding_of(at::kDouble);
  EXPECT_TRUE(got.sub(wanted).abs().le(magnitude.mul(unit)).all().item<bool>())
      << what << " is off by " << got.sub(wanted).abs().max().item<double>();
}

double share_of_zeros(const at::Tensor& mask) { return mask.eq(0).to(at::kDouble).mean().item<double>(); }

// Returns the |mask| of all ranks of |group|.
std::vector<at::Tensor> of_all_ranks(const at::Tensor& mask, ProcessGroup& group) {
  return gather(mask.unsqueeze(0), group, 0).take().cpu().unbind(0);
}

class ParallelDropout : public ::testing::TestWithParam<bool> {};

TEST_P(ParallelDropout, DiffersOverTensorParallelRanksWhereTheirElementsDoAndNeverOverDataParallelOnes) {
  expect_job(4, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    const bool sequence_parallel = GetParam();
    const Masks masks = Network(job, sequence_parallel).masks();
    for (const at::Tensor& mask : {masks.inner, masks.outer}) {
      const auto replicas = of_all_ranks(mask, job.group(GroupKind::dp));
      EXPECT_TRUE(replicas.at(0).equal(replicas.at(1)));
    }
    const auto inner = of_all_ranks(masks.inner, job.group(GroupKind::tp));
    const auto outer = of_all_ranks(masks.outer, job.group(GroupKind::tp));
    EXPECT_FALSE(inner.at(0).equal(inner.at(1)));
    EXPECT_EQ(outer.at(0).equal(outer.at(1)), !sequence_parallel);
    // Within five standard deviations of the probability: 384, and 192 or more, independent draws.
    EXPECT_NEAR(share_of_zeros(inner[0]), kInnerShare, 0.12);
    EXPECT_NEAR(share_of_zeros(outer[0]), kOuterShare, 0.2);
    // Independent, not only different: both drop an element as often as expected by chance.
    const at::Tensor both = inner[0].eq(0).logical_and(inner[1].eq(0));
    EXPECT_NEAR(both.to(at::kDouble).mean().item<double>(), kInnerShare * kInnerShare, 0.07);
  });
}

TEST_P(ParallelDropout, GivesTheResultAndGradientsOfTheWholeNetworkWithTheSameMasks) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    Network network(job, GetParam());
    const Masks masks = network.masks();
    const at::Tensor inner = gather(masks.inner, job.group(GroupKind::tp), 1).take().cpu();
    const at::Tensor outer = network.all_tokens(masks.outer);
    const NetworkOutcome got = network.run(false);
    const NetworkOutcome wanted = reference(inner, outer, false);
    const NetworkOutcome size = reference(inner, outer, true);
    expect_within("y", got.y, wanted.y, size.y);
    expect_within("the gradient of x", got.x, wanted.x, size.x);
    expect_within("the gradient of w1", got.w1, wanted.w1, size.w1);
    expect_within("the gradient of w2", got.w2, wanted.w2, size.w2);
  });
}

TEST_P(ParallelDropout, IsReplayedBitForBitByRecomputation) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    const auto before = job.rng().save();
    const NetworkOutcome plain = Network(job, GetParam()).run(false);
    const auto after = job.rng().save();
    EXPECT_NE(before, after);
    job.rng().restore(before);
    const NetworkOutcome again = Network(job, GetParam()).run(true);
    EXPECT_EQ(job.rng().save(), after);
    EXPECT_TRUE(again.y.equal(plain.y));
    EXPECT_TRUE(again.x.equal(plain.x));
    EXPECT_TRUE(again.w1.equal(plain.w1));
    EXPECT_TRUE(again.w2.equal(plain.w2));
    const NetworkOutcome next = Network(job, GetParam()).run(true);
    EXPECT_FALSE(next.y.equal(plain.y));  // another step drops different elements
  });
}

INSTANTIATE_TEST_SUITE_P(Over, ParallelDropout, ::testing::Values(false, true),
                         [](const auto& each) { return each.param ? "OwnTokens" : "WholeTokens"; });

}  // namespace
}  // namespace concord::tests
