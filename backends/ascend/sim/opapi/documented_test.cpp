#include "backends/ascend/sim/opapi/documented.h"

#include <gmock/gmock.h>

namespace concord::ascend::sim {
namespace {

using ::testing::HasSubstr;
using Sizes = std::vector<int64_t>;

// A call whose tensors are alive while it is.
struct Call {
  std::vector<TensorView> views = {};
  CallArguments arguments = {};

  Call& tensor(abi::aclDataType dtype, Sizes sizes) {
    views.push_back(
        {.sizes = std::move(sizes), .strides = {}, .offset = 0, .dtype = dtype, .format = 2, .storage = {}});
    return *this;
  }
  std::string complaint(const char* name) {
    arguments.tensors.clear();
    for (const TensorView& each : views) arguments.tensors.push_back(&each);
    return documented_complaint(name, arguments);
  }
};

constexpr auto kF = abi::kAclFloat;
constexpr auto kB = abi::kAclBf16;

TEST(Documented, NormsHaveTheCombinationsOfTypesAndShapesOfTheirPages) {
  const auto norm = [](abi::aclDataType gamma, Sizes gamma_sizes, Sizes rstd) {
    return Call{}
        .tensor(kB, {2, 3, 8})
        .tensor(gamma, gamma_sizes)
        .tensor(kB, {2, 3, 8})
        .tensor(kF, rstd)
        .complaint("aclnnRmsNorm");
  };
  EXPECT_EQ(norm(kB, {8}, {2, 3, 1}), "");
  EXPECT_EQ(norm(kF, {3, 8}, {2, 1, 1}), "");
  EXPECT_THAT(norm(abi::kAclFloat16, {8}, {2, 3, 1}), HasSubstr("combination of types"));
  EXPECT_THAT(norm(kB, {4}, {2, 3, 1}), HasSubstr("last sizes of x"));
  EXPECT_THAT(norm(kB, {8}, {2, 3}), HasSubstr("rstd"));
  EXPECT_THAT(norm(kB, Sizes(9, 1), {2, 3, 1}), HasSubstr("1 to 8 dimensions"));
  Call added;
  added.arguments.numbers = {1e-6};
  for (int i = 0; i < 4; ++i) added.tensor(kB, i == 2 ? Sizes{8} : Sizes{2, 8});
  added.tensor(kF, {2, 1}).tensor(kB, {2, 8});
  EXPECT_EQ(added.complaint("aclnnAddRmsNorm"), "");
  added.views[2].dtype = kF;  // RmsNorm takes it, this one does not
  EXPECT_THAT(added.complaint("aclnnAddRmsNorm"), HasSubstr("combination of types"));
  added.views[2].dtype = kB;
  added.arguments.numbers = {-1};
  EXPECT_THAT(added.complaint("aclnnAddRmsNorm"), HasSubstr("epsilon"));
}

TEST(Documented, RotationsAreBelow896ElementsAndFewHeads) {
  const auto rotary = [](Sizes x, Sizes cosine, int64_t mode) {
    Call call;
    call.arguments.integers = {mode};
    return call.tensor(kB, x)
        .tensor(kB, cosine)
        .tensor(kB, cosine)
        .tensor(kB, x)
        .complaint("aclnnRotaryPositionEmbedding");
  };
  EXPECT_EQ(rotary({4096, 2, 16, 128}, {4096, 1, 1, 128}, 0), "");
  EXPECT_EQ(rotary({4096, 2, 16, 894}, {4096, 1, 1, 894}, 1), "");
  EXPECT_THAT(rotary({64, 2, 16, 896}, {64, 1, 1, 896}, 0), HasSubstr("below 896"));
  EXPECT_THAT(rotary({64, 2, 16, 63}, {64, 1, 1, 63}, 0), HasSubstr("even"));
  EXPECT_THAT(rotary({64, 1000, 16, 64}, {64, 1, 1, 64}, 0), HasSubstr("below 1000"));
  EXPECT_THAT(rotary({64, 50, 20, 64}, {64, 1, 1, 64}, 1), HasSubstr("B * N"));
  EXPECT_THAT(rotary({64, 2, 16, 64}, {32, 1, 1, 64}, 0), HasSubstr("1 or that of x"));
  EXPECT_THAT(rotary({64, 2, 16, 64}, {64, 1, 1, 64}, 2), HasSubstr("mode"));
}

TEST(Documented, AttentionHasTheRangesOfItsPage) {
  const auto attention = [](const char* layout, Sizes q, Sizes k, int64_t heads, double keep, int64_t mode) {
    Call call;
    call.arguments = {.tensors = {}, .integers = {65536, 0, heads, 0, mode}, .numbers = {0.1, keep}, .texts = {layout}};
    return call.tensor(kB, q).tensor(kB, k).tensor(kB, k).complaint("aclnnFlashAttentionScore");
  };
  EXPECT_EQ(attention("BSND", {2, 64, 8, 128}, {2, 64, 2, 128}, 8, 1, 2), "");
  EXPECT_EQ(attention("SBH", {64, 2, 1024}, {64, 2, 256}, 8, 0.9, 0), "");
  EXPECT_THAT(attention("BSND", {2, 64, 8, 128}, {2, 64, 3, 128}, 8, 1, 2), HasSubstr("multiple of those of the key"));
  EXPECT_THAT(attention("BSND", {2, 64, 8, 769}, {2, 64, 2, 769}, 8, 1, 2), HasSubstr("769 elements"));
  EXPECT_THAT(attention("BSND", {2, 64, 257, 8}, {2, 64, 1, 8}, 257, 1, 2), HasSubstr("257 heads"));
  EXPECT_THAT(attention("BSND", {2, 64, 8, 128}, {1, 64, 2, 128}, 8, 1, 2), HasSubstr("one B"));
  EXPECT_THAT(attention("BSND", {2, 64, 8, 128}, {2, 64, 2, 128}, 8, 0, 2), HasSubstr("keepProb"));
  EXPECT_THAT(attention("BSND", {2, 64, 8, 128}, {2, 64, 2, 128}, 8, 1, 7), HasSubstr("sparseMode"));
  EXPECT_THAT(attention("SBH", {64, 2, 1020}, {64, 2, 256}, 8, 1, 0), HasSubstr("multiple of the heads"));
}

TEST(Documented, SwigluHalvesOneDimensionAndAdamWHasOneShape) {
  const auto swiglu = [](Sizes x, Sizes y, int64_t dim) {
    Call call;
    call.arguments.integers = {dim};
    return call.tensor(kF, x).tensor(kF, y).complaint("aclnnSwiGlu");
  };
  EXPECT_EQ(swiglu({2, 6}, {2, 3}, -1), "");
  EXPECT_EQ(swiglu({2, 6}, {1, 6}, 0), "");
  EXPECT_THAT(swiglu({2, 5}, {2, 2}, -1), HasSubstr("even"));
  EXPECT_THAT(swiglu({2, 6}, {2, 3}, 2), HasSubstr("dim is 2"));
  EXPECT_THAT(swiglu({2, 6}, {3, 3}, -1), HasSubstr("differ in dim only"));
  Call adamw;
  for (int i = 0; i < 5; ++i) adamw.tensor(kF, {8});
  adamw.tensor(abi::kAclInt64, {1});
  EXPECT_EQ(adamw.complaint("aclnnApplyAdamWV2"), "");
  adamw.views[1].dtype = kB;
  EXPECT_THAT(adamw.complaint("aclnnApplyAdamWV2"), HasSubstr("combination of types"));
  adamw.views[1] = {.sizes = {4}, .strides = {}, .offset = 0, .dtype = kF, .format = 2, .storage = {}};
  EXPECT_THAT(adamw.complaint("aclnnApplyAdamWV2"), HasSubstr("one shape"));
}

TEST(Documented, OtherOperatorsAreNotChecked) {
  EXPECT_EQ(Call{}.tensor(kF, {}).complaint("aclnnAdd"), "");
  EXPECT_EQ(documented_operators().size(), 9u);
}

}  // namespace
}  // namespace concord::ascend::sim
