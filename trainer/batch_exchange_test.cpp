#include "trainer/batch_exchange.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

namespace concord {
namespace {

TEST(BatchExchange, NumbersBecomeTheSameInputsAgain) {
  const at::Tensor ids = at::arange(12, at::kLong).view({2, 6});
  const StepInputs inputs{.batches = {{.input_ids = ids, .labels = ids.mul(-1)},
                                      {.input_ids = ids.view({1, 12}),
                                       .labels = ids.view({1, 12}).add(1),
                                       .position_ids = ids.view({1, 12}).remainder(5),
                                       .cu_seqlens = {0, 5, 12},
                                       .pairs = {7, -1},
                                       .margins = {0.5, -1e300},
                                       .draws = BatchDraws{9, 12}},
                                      {.input_ids = ids.t(), .labels = ids.t()}},  // not contiguous
                          .rng = {{"default", {~0ULL, 2, 3}}, {"other", {4, 5, 6}}}};
  const StepInputs back = from_numbers(to_numbers(inputs), {{"default", {}}, {"other", {}}});
  ASSERT_EQ(back.batches.size(), inputs.batches.size());
  for (size_t i = 0; i < inputs.batches.size(); ++i) {
    const MicroBatch &a = inputs.batches[i], &b = back.batches[i];
    EXPECT_TRUE(a.input_ids.equal(b.input_ids));
    EXPECT_TRUE(a.labels.equal(b.labels));
    EXPECT_EQ(a.position_ids.defined(), b.position_ids.defined());
    if (a.position_ids.defined() && b.position_ids.defined()) {
      EXPECT_TRUE(a.position_ids.equal(b.position_ids));
    }
    EXPECT_EQ(a.cu_seqlens, b.cu_seqlens);
    EXPECT_EQ(a.pairs, b.pairs);
    EXPECT_EQ(a.margins, b.margins);
    ASSERT_EQ(a.draws.has_value(), b.draws.has_value());
    if (!a.draws) continue;
    EXPECT_EQ(a.draws->step, b.draws->step);
    EXPECT_EQ(a.draws->first_row, b.draws->first_row);
  }
  EXPECT_EQ(back.rng, inputs.rng);
}

}  // namespace
}  // namespace concord
