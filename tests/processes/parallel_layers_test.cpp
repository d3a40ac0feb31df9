// Sharded layers, in real processes, compared with the whole network in fp64 on one rank.
//
// The network is y = row(column(x)) + biases with an embedding in front: sums of products, so the error of any order of
// summation is bounded by (number of roundings) x (unit roundoff) x (the same network on absolute values). That holds
// for gradients too, which are such sums again. A missing reduction causes an error of a whole summand.
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "core/base/config_error.h"
#include "core/ops/linear.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/mappings.h"
#include "core/parallel/parallel_linear.h"
#include "core/parallel/testing/memory_meter.h"
#include "core/parallel/vocabulary.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 24, kBatch = 3, kIn = 20, kHidden = 16, kOut = 12, kVocabulary = 37;

// The weights of the whole network and its results: the same fields hold values, then their gradients.
struct Parts {
  at::Tensor table, w1, b1, w2, b2;
  std::vector<at::Tensor*> all() { return {&table, &w1, &b1, &w2, &b2}; }
};
const char* const kNames[] = {"table", "w1", "b1", "w2", "b2"};

Parts weights(at::ScalarType type, int64_t rows) {
  Parts p{at::zeros({rows, kIn}, at::kDouble).to(type), sample({kHidden, kIn}, 2, type), sample({kHidden}, 3, type),
          sample({kOut, kHidden}, 4, type), sample({kOut}, 5, type)};
  p.table.narrow(0, 0, kVocabulary).copy_(sample({kVocabulary, kIn}, 1, type));
  return p;
}

at::Tensor token_ids() { return sample({kTokens, kBatch}, 6).add(1).mul(kVocabulary / 2.0).floor().to(at::kLong); }

struct Outcome {
  at::Tensor y;
  Parts grads;
};

// On one rank, in fp64. With |magnitudes| every number is replaced by its absolute value: the sums of magnitudes.
Outcome reference(Parts p, at::Tensor grad, bool magnitudes) {
  for (at::Tensor* each : p.all()) {
    *each = (magnitudes ? each->abs() : *each).to(at::kDouble).detach().requires_grad_(true);
  }
  grad = (magnitudes ? grad.abs() : grad).to(at::kDouble);
  const at::Tensor x = p.table.index_select(0, token_ids().flatten()).view({kTokens, kBatch, kIn});
  const at::Tensor y = at::linear(at::linear(x, p.w1, p.b1), p.w2, p.b2);
  y.backward(grad);
  return {y.detach(), {p.table.grad(), p.w1.grad(), p.b1.grad(), p.w2.grad(), p.b2.grad()}};
}

struct Setting {
  bool sequence_parallel;
  at::ScalarType type;
  bool sinks;
  int64_t pieces;
  bool put_off = false;  // weight gradients run after backward
};

// Like whole(), sharded over the ranks of a group; gathers the results.
Outcome cut(ProcessGroup& group, const Parts& whole, const at::Tensor& grad, const Setting& setting) {
  const auto leaf = [](const at::Tensor& x) { return here(x.contiguous().clone()).requires_grad_(true); };
  const at::Tensor table = leaf(own_part(whole.table, group, 0));
  const at::Tensor w1 = leaf(own_part(whole.w1, group, 0)), b1 = leaf(own_part(whole.b1, group, 0));
  const at::Tensor w2 = leaf(own_part(whole.w2, group, 1)), b2 = leaf(whole.b2);
  const auto sums = setting.type == at::kDouble ? at::kDouble : at::kFloat;
  DeferredWgrads later;
  const auto sink_of = [&](const at::Tensor& w) {
    return GradSink{.main = at::zeros(w.sizes(), w.options().dtype(sums)),
                    .deferred = setting.put_off ? &later : nullptr};
  };
  const GradSink sink0 = sink_of(table), sink1 = sink_of(w1), sink2 = sink_of(w2);
  const auto use = [&](const GradSink& sink) { return setting.sinks ? &sink : nullptr; };
  const bool sp = setting.sequence_parallel;
  const ParallelLinearOptions options{.name = "mlp", .sequence_parallel = sp, .pieces = setting.pieces};

  const at::Tensor x = vocab_parallel_embedding(table, here(token_ids()), kVocabulary, group, sp, use(sink0));
  const at::Tensor h = column_parallel_linear(x, w1, b1, group, options, use(sink1));
  const at::Tensor y = row_parallel_linear(h, w2, b2, group, options, use(sink2));
  y.backward(here(sp ? own_part(grad, group, 0) : grad));
  later.run_all();

  const auto grad_of = [&](const at::Tensor& w, const GradSink& sink) { return setting.sinks ? sink.main : w.grad(); };
  at::Tensor b2_grad = b2.grad();
  if (sp) b2_grad = all_reduce_(b2_grad, group).take();  // partial, from its own tokens only, see the header
  return {sp ? gather(y.detach(), group, 0).take() : y.detach(),
          {gather(grad_of(table, sink0), group, 0).take(), gather(grad_of(w1, sink1), group, 0).take(),
           gather(b1.grad(), group, 0).take(), gather(grad_of(w2, sink2), group, 1).take(), b2_grad}};
}

void expect_within(const char* what, const at::Tensor& got, const at::Tensor& wanted, const at::Tensor& bound) {
  const at::Tensor error = got.to(at::kCPU, at::kDouble).sub(wanted).abs();
  EXPECT_TRUE(error.le(bound).all().item<bool>())
      << what << ": largest error " << error.max().item<double>() << ", smallest bound " << bound.min().item<double>();
}

void check_network(ProcessGroup& group, const Setting& setting) {
  const int64_t rows = padded_vocabulary(kVocabulary, group.size(), 4);
  Parts whole = weights(setting.type, rows);
  const at::Tensor grad = sample({kTokens, kBatch, kOut}, 7, setting.type);
  Outcome wanted = reference(whole, grad, false);
  Outcome magnitudes = reference(whole, grad, true);
  Outcome got = cut(group, whole, grad, setting);
  // Roundings of any summand: the longest sums are over all tokens; in the tensors' own type each intermediate tensor
  // is rounded once, and a sum over ranks once per rank. Twice for fp64, whose reference is rounded as well.
  const double sums = static_cast<double>(kIn + kHidden + kOut + kTokens * kBatch);
  const double tensors = 6 + 2.0 * static_cast<double>(group.size());
  const double unit = 2 * (sums * sum_rounding_of(setting.type) + tensors * rounding_of(setting.type));
  expect_within("y", got.y, wanted.y, magnitudes.y.mul(unit));
  for (size_t i = 0; i < 5; ++i) {
    expect_within(kNames[i], *got.grads.all()[i], *wanted.grads.all()[i], magnitudes.grads.all()[i]->mul(unit));
  }
}

class ParallelLayers : public ::testing::TestWithParam<int> {};

TEST_P(ParallelLayers, OutputsAndGradientsAreThoseOfTheWholeNetwork) {
  expect_job(GetParam(), {.tensor_model_parallel_size = GetParam()}, [](ParallelContext& job) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const bool sequence_parallel : {false, true}) {
        for (const bool sinks : {false, true}) {
          for (const int64_t pieces : {1, 2}) {
            SCOPED_TRACE(testing::Message() << c10::toString(type) << " sequence_parallel " << sequence_parallel
                                            << " sinks " << sinks << " pieces " << pieces);
            check_network(job.group(GroupKind::tp), {sequence_parallel, type, sinks, pieces});
            if (sinks) check_network(job.group(GroupKind::tp), {sequence_parallel, type, sinks, pieces, true});
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ParallelLayers, ::testing::Values(1, 2, 4));

TEST(ParallelLayersTogether, TensorAndDataParallelGroupsOfOneJobDoNotMix) {
  expect_job(4, {.tensor_model_parallel_size = 2},
             [](ParallelContext& job) { check_network(job.group(GroupKind::tp), {true, at::kFloat, true, 1}); });
}

// Deferred weight gradients of zero-bubble schedules keep only this rank's part of gathered tensors under sequence
// parallelism.
TEST(ParallelLayersTogether, WeightGradientsThatArePutOffKeepSharesOfTheTokens) {
  expect_job(4, {.tensor_model_parallel_size = 4}, [](ParallelContext& job) {
    if (!job.torch_device().is_cpu()) return;  // the meter measures host memory
    ProcessGroup& group = job.group(GroupKind::tp);
    constexpr int64_t kMany = 4096, kFeatures = 32;
    const at::Tensor w1 = at::zeros({kFeatures / 4, kFeatures}).requires_grad_(true);
    const at::Tensor w2 = at::zeros({kFeatures, kFeatures / 4}).requires_grad_(true);
    // The meter sees only this thread: memory that a group's own thread frees last stays counted. So the minimum of
    // some.
    constexpr int kAttempts = 8;
    int64_t held = std::numeric_limits<int64_t>::max();
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      DeferredWgrads later;
      const GradSink sink1{.main = at::zeros(w1.sizes()), .deferred = &later};
      const GradSink sink2{.main = at::zeros(w2.sizes()), .deferred = &later};
      const auto meter = std::make_shared<MemoryMeter>();
      {
        const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, meter);
        const ParallelLinearOptions options{.name = "mlp", .sequence_parallel = true};
        const at::Tensor x = at::zeros({kMany / 4, 1, kFeatures}).requires_grad_(true);
        const at::Tensor h = column_parallel_linear(x, w1, {}, group, options, &sink1);
        const at::Tensor y = row_parallel_linear(h, w2, {}, group, options, &sink2);
        y.backward(at::ones_like(y));
      }
      EXPECT_EQ(later.size(), 2u);
      held = std::min(held, static_cast<int64_t>(meter->held));
      later.run_all();
    }
    // x and the gradient of y by tokens; h and its gradient, of which each rank holds its own features.
    const int64_t share = kMany / 4 * kFeatures * 4, own = kMany * (kFeatures / 4) * 4;
    EXPECT_LE(held, 2 * share + 2 * own);
    EXPECT_GE(held, share + own) << "the meter sees nothing";
  });
}

// The harness detects a missing reduction: without that of copy_to_region the gradient lacks the other rank's summand.
TEST(ParallelLayersTogether, AForgottenReductionIsFarOutsideOfTheBound) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::tp);
    const at::Tensor w = sample({kHidden, kIn}, 2);
    const at::Tensor grad = sample({kTokens, kHidden}, 3);
    const at::Tensor whole = grad.matmul(w);
    const at::Tensor magnitudes = grad.abs().matmul(w.abs());
    const auto gradient = [&](bool forget) {
      const at::Tensor x = here(sample({kTokens, kIn}, 1)).requires_grad_(true);
      const at::Tensor part = here(own_part(w, group, 0).contiguous());
      const at::Tensor y = forget ? concord::linear(x, part) : column_parallel_linear(x, part, {}, group);
      y.backward(here(own_part(grad, group, 1)));
      return x.grad().cpu();
    };
    const at::Tensor bound = magnitudes.mul(2 * (kHidden + 8) * rounding_of(at::kDouble));
    expect_within("x", gradient(false), whole, bound);
    EXPECT_GT(gradient(true).sub(whole).abs().div(bound).min().item<double>(), 100);
  });
}

TEST(ParallelLayersTogether, SizesThatDoNotFitAreRefusedWithTheLayerTheSizesAndTheDegree) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::tp);
    const auto refusal = [&](int64_t tokens, int64_t features) -> std::string {
      try {
        row_parallel_linear(sample({tokens, features}, 1), sample({kOut, 8}, 2), {}, group,
                            {.name = "layers.3.mlp.down", .sequence_parallel = true});
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "accepted";
    };
    EXPECT_THAT(refusal(4, 7), AllOf(HasSubstr("layers.3.mlp.down"), HasSubstr("7 features"), HasSubstr("2 ranks")));
    EXPECT_THAT(refusal(5, 8), AllOf(HasSubstr("the tokens of layer layers.3.mlp.down has 5"), HasSubstr("2 ranks")));
  });
}

TEST(PaddedVocabulary, IsMegatrons) {
  EXPECT_EQ(padded_vocabulary(50257, 1), 50304);
  EXPECT_EQ(padded_vocabulary(50257, 8), 51200);
  EXPECT_EQ(padded_vocabulary(151936, 4), 152064);
  EXPECT_EQ(padded_vocabulary(1, 2, 4), 8);
  EXPECT_THROW(padded_vocabulary(0, 1), ConfigError);
}

}  // namespace
}  // namespace concord::tests
