#include "core/ops/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_embedding {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Ids inside the table, and in some draws on both sides of it.
struct Drawn {
  Drawn(Draw& draw, c10::ScalarType type)
      : rows(draw.size()),
        width(draw.size()),
        first(draw.coin() ? 0 : draw.between(1, 20)),
        vocabulary(first + rows + (draw.coin() ? 5 : 0)),
        weight(draw.normal({rows, width}, type)),
        ids(draw.integers({draw.size(), draw.between(1, 9)}, 0, vocabulary - 1)) {}
  int64_t rows, width, first, vocabulary;
  at::Tensor weight, ids;
};

const RegisterSamples kForward("concord::embedding", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  return Sample{{d.weight, d.ids, d.first, d.vocabulary}, 0};
});
const RegisterSamples kBackward("concord::embedding_backward_", [](Draw& draw, c10::ScalarType type) {
  const Drawn d(draw, type);
  const at::Tensor main = draw.normal({d.rows, d.width}, type == at::kDouble ? type : at::kFloat);
  const at::Tensor grad = draw.normal({d.ids.size(0), d.ids.size(1), d.width}, type);
  return Sample{{main, grad, d.ids, d.first, d.vocabulary}, 2, {static_cast<double>(d.ids.numel()) * largest(grad)}};
});

TEST(Embedding, OfTheRanksTogetherIsLibtorchsOfTheWhole) {
  Draw draw(2);
  const at::Tensor table = draw.normal({12, 5}, at::kFloat);
  const at::Tensor ids = draw.integers({4, 6}, 0, 10);
  at::Tensor sum = at::zeros({4, 6, 5});
  for (int64_t first = 0; first < 12; first += 4) {
    sum += concord::embedding(table.narrow(0, first, 4), ids, {.first = first, .vocabulary = 11});
  }
  EXPECT_TRUE(at::equal(sum, at::embedding(table, ids)));
}

TEST(Embedding, AddsItsGradientToTheMainGradient) {
  Draw draw(2);
  const at::Tensor table = draw.normal({12, 5}, at::kFloat).requires_grad_(true);
  const at::Tensor ids = draw.integers({40}, 0, 11);
  const at::Tensor grad = draw.normal({40, 5}, at::kFloat);
  concord::embedding(table, ids).backward(grad);
  const at::Tensor expected = table.grad().clone();
  DeferredWgrads later;
  int added = 0;
  const GradSink sink{at::zeros({12, 5}), [&] { ++added; }, &later};
  concord::embedding(table, ids, {}, &sink).backward(grad);
  EXPECT_EQ(largest(sink.main), 0);
  later.run_all();
  EXPECT_EQ(added, 1);
  EXPECT_TRUE(at::equal(sink.main, expected));
  EXPECT_TRUE(at::equal(table.grad(), expected));  // unchanged: the second gradient went to the sink
}

TEST(Embedding, RefusesIdsOutsideOfTheVocabularyAndNamesThem) {
  const at::Tensor table = at::zeros({4, 2});
  EXPECT_THAT([&] { concord::embedding(table, at::zeros({3}, at::kLong) + 4); },
              ThrowsMessage<ConfigError>(HasSubstr("operator embedding: id 0 is 4; must be from 0 to 3")));
  EXPECT_THAT([&] { concord::embedding(table, at::zeros({3}, at::kLong) - 1, {.first = 4, .vocabulary = 8}); },
              ThrowsMessage<ConfigError>(HasSubstr("id 0 is -1; must be from 0 to 7")));
}

}  // namespace
}  // namespace concord::ops::testing::of_embedding
