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

// Parts of one buffer and gradients of the type or of the buffer's: neighbours, or with gaps in between, in order or
// not.
Sample draw_copy(Draw& draw, c10::ScalarType type) {
  const auto wide = type == at::kDouble ? type : at::kFloat;
  const int64_t count = draw.between(0, 5);
  const at::Tensor buffer = draw.normal({512}, wide);
  std::vector<at::Tensor> main, grads;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = draw.size();
    main.push_back(buffer.narrow(0, begin, size));
    grads.push_back(draw.normal({size}, draw.coin() ? type : wide));
    begin += size + (draw.coin() ? 0 : draw.between(1, 9));
  }
  if (count > 1 && draw.coin()) {
    std::swap(main.front(), main.back());
    std::swap(grads.front(), grads.back());
  }
  return {{c10::List<at::Tensor>(main), c10::List<at::Tensor>(grads)}, 0};
}

const RegisterSamples kCopy("concord::copy_grads_", draw_copy);
const RegisterRealSizes kRealCopy("concord::copy_grads_", {draw_copy});

Sample draw_preference(Draw& draw, c10::ScalarType type) { return {{draw.normal({draw.size()}, type)}}; }
const RegisterSamples kPreference("concord::prefers_cleared_grads", draw_preference);
const RegisterRealSizes kRealPreference("concord::prefers_cleared_grads", {draw_preference});

TEST(MainGrads, ListsOfDifferentLengthsAreRejected) {
  Draw draw(1);
  const at::Tensor one = draw.normal({3}, at::kFloat);
  EXPECT_THAT([&] { copy_grads_({one, one}, {one}); },
              ThrowsMessage<ConfigError>(HasSubstr("1 gradients cannot be copied to 2")));
}

}  // namespace
}  // namespace concord::ops::testing::of_main_grads
