#include "core/ops/main_grads.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <utility>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_main_grads {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MainGrads, ListsOfDifferentLengthsAreRejected) {
  Draw draw(1);
  const at::Tensor one = draw.normal({3}, at::kFloat);
  EXPECT_THAT([&] { copy_grads_({one, one}, {one}); },
              ThrowsMessage<ConfigError>(HasSubstr("1 gradients cannot be copied to 2")));
}

}  // namespace
}  // namespace concord::ops::testing::of_main_grads
