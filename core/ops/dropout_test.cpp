#include "core/ops/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_dropout {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const RegisterSamples kDropout("concord::dropout", [](Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw.normal({draw.size(), draw.coin() ? draw.size() : 5000}, type);
  return Sample{{x, draw.coin() ? 0.1 : 0.75, draw.between(-5, 1000), draw.between(0, 9), draw.between(0, 10000)}};
});

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  Generator generator(7);
  const at::Tensor y = dropout(at::ones({1000, 1000}), 0.3, generator);
  const double dropped = (y == 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(dropped, 0.3, 5 * std::sqrt(0.3 * 0.7 / 1e6));  // five standard deviations
  EXPECT_EQ(largest(y), static_cast<double>(1.0f / 0.7f));
}

TEST(Dropout, AdvancesTheGeneratorAndRepeatsItselfWhenReplayed) {
  Generator generator(7, 3, 100);
  const at::Tensor x = at::ones({33, 7});
  const at::Tensor first = dropout(x, 0.5, generator);
  EXPECT_EQ(generator.state().offset, 100u + 33 * 7);
  EXPECT_FALSE(at::equal(first, dropout(x, 0.5, generator)));
  generator.restore({7, 3, 100});
  EXPECT_TRUE(at::equal(first, dropout(x, 0.5, generator)));
}

TEST(Dropout, OfPartsIsThePartsOfTheWhole) {
  Generator generator(9);
  const at::Tensor whole = dropout(at::ones({20000}), 0.4, generator);
  Generator later(9, 0, 12345);
  EXPECT_TRUE(at::equal(dropout(at::ones({20000 - 12345}), 0.4, later), whole.narrow(0, 12345, 20000 - 12345)));
}

TEST(Dropout, OfNothingDrawsNothing) {
  Generator generator(9);
  const at::Tensor x = at::ones({4});
  EXPECT_EQ(dropout(x, 0, generator).data_ptr(), x.data_ptr());
  EXPECT_EQ(generator.state().offset, 0u);
}

TEST(Dropout, RefusesAShareThatIsNone) {
  Generator generator(9);
  EXPECT_THAT([&] { dropout(at::ones({4}), 1, generator); },
              ThrowsMessage<ConfigError>(HasSubstr("operator dropout: the dropout probability is 1")));
}

}  // namespace
}  // namespace concord::ops::testing::of_dropout
