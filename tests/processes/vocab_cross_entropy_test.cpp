// Cross entropy over a vocabulary that is sharded over real processes: the losses and the gradients of one process,
// bitwise identical on every rank.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/ops/loss/cross_entropy.h"
#include "core/ops/loss/vocab_share.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {
namespace {

// The same on every rank: all draw it from one seed.
struct Batch {
  Batch(int64_t vocabulary, int64_t padded, at::ScalarType type) {
    at::manual_seed(5);
    logits = at::randn({3, 17, padded}, at::kDouble).mul(3).to(type);
    labels = at::randint(vocabulary, {3, 17}, at::kLong);
    labels[1][3] = -100;
    weights = at::randn({3, 17}, at::kDouble);
  }
  at::Tensor logits, labels, weights;
};

struct Result {
  at::Tensor loss, grad;
};

// Runs on the device of |logits|; the result is on the cpu.
Result run(const at::Tensor& logits, const Batch& batch, const CrossEntropyOptions& options, const VocabShare& share) {
  const at::Tensor x = logits.detach().clone().requires_grad_(true);
  const at::Tensor loss = cross_entropy(x, batch.labels.to(x.device()), options, share);
  const at::Tensor weighed = (loss * batch.weights.to(x.device(), loss.scalar_type())).sum();
  return {loss.detach().cpu(), torch::autograd::grad({weighed}, {x}).at(0).cpu()};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// Rounding bounds: one ulp of the type for the gradient, which is of the size of its largest softmax, 1 here; a few of
// fp32 for the loss, whose terms are below 32.
struct Bounds {
  explicit Bounds(at::ScalarType type) {
    const double fp32 = 1.2e-7, bf16 = 1.0 / 256;
    loss = type == at::kDouble ? 1e-13 : 32 * 4 * fp32;
    grad = type == at::kDouble ? 1e-14 : type == at::kFloat ? 32 * fp32 : bf16;
  }
  double loss, grad;
};

void check_ranks(int world, at::ScalarType type) {
  constexpr int64_t kVocabulary = 101, kPadded = 104;
  const CrossEntropyOptions options{
      .vocabulary = kVocabulary, .label_smoothing = 0.1, .z_loss = 1e-3, .overwrite_logits = true};
  expect_job(world, {.tensor_model_parallel_size = world}, [&](ParallelContext& job) {
    const Batch batch(kVocabulary, kPadded, type);
    const Result expected = run(batch.logits.to(at::kDouble), batch, options, {});
    ProcessGroup& group = job.group(GroupKind::tp);
    const int64_t width = kPadded / world;
    const auto mine = [&](const at::Tensor& t) { return t.narrow(-1, group.rank() * width, width); };
    const Result got = run(here(mine(batch.logits).contiguous()), batch, options, vocab_share(group));
    const Bounds bounds(type);
    const double scale = batch.weights.abs().max().item<double>();
    EXPECT_LE(distance(got.loss, expected.loss), bounds.loss);
    EXPECT_LE(distance(got.grad, mine(expected.grad)), bounds.grad * scale);

    const at::Tensor all = here(at::empty({world, got.loss.numel()}, got.loss.options()));
    group.all_gather(all, here(got.loss.contiguous())).wait();
    for (int64_t r = 0; r < world; ++r) EXPECT_TRUE(at::equal(all[r].cpu(), got.loss.view({-1}))) << "rank " << r;
  });
}

TEST(VocabCrossEntropy, OfTwoAndFourRanksIsThatOfOne) {
  for (const int world : {2, 4}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << world << " ranks, " << c10::toString(type));
      check_ranks(world, type);
    }
  }
}

TEST(VocabCrossEntropy, WithoutItsExchangeIsWrong) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [&](ParallelContext& job) {
    const Batch batch(104, 104, at::kDouble);
    const Result expected = run(batch.logits, batch, {}, {});
    VocabShare share = vocab_share(job.group(GroupKind::tp));
    share.all_gather = [](const at::Tensor& all, const at::Tensor& mine) { all.copy_(mine.expand_as(all)); };
    const Result got = run(here(batch.logits.narrow(-1, share.index * 52, 52).contiguous()), batch, {}, share);
    EXPECT_GT(distance(got.loss, expected.loss), 0.1);
  });
}

}  // namespace
}  // namespace concord::tests
