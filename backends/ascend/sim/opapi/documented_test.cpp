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
    for (const TensorView& each : views) {
      arguments.tensors.push_back(each.dtype == abi::kAclDtUndefined ? nullptr : &each);
    }
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

constexpr auto kHalf = abi::kAclFloat16;
constexpr auto kInt = abi::kAclInt32;
constexpr auto kLong = abi::kAclInt64;

// Appends tensors that are missing.
Call& missing(Call& call, int count) {
  for (int i = 0; i < count; ++i) call.tensor(abi::kAclDtUndefined, {});
  return call;
}

struct AttentionCall {
  const char* layout = "BSND";
  Sizes q = {2, 64, 8, 128}, k = {2, 64, 2, 128};
  int64_t heads = 8;
  double keep = 1;
  int64_t mode = 2;
  Sizes mask = {2048, 2048};

  CallArguments numbers() const {
    return {
        .tensors = {}, .lists = {}, .integers = {65536, 0, heads, 0, mode}, .numbers = {0.1, keep}, .texts = {layout}};
  }
  std::string forward(const char* name = "aclnnFlashAttentionScore") const {
    Call call;
    call.arguments = numbers();
    missing(call.tensor(kB, q).tensor(kB, k).tensor(kB, k), 3);
    return mask.empty() ? missing(call, 1).complaint(name) : call.tensor(abi::kAclBool, mask).complaint(name);
  }
  std::string backward(Sizes gradient, Sizes row_max) const {
    Call call;
    call.arguments = numbers();
    missing(call.tensor(kB, q).tensor(kB, k).tensor(kB, k).tensor(kB, gradient), 3);
    return call.tensor(abi::kAclBool, mask).tensor(kF, row_max).complaint("aclnnFlashAttentionScoreGrad");
  }
};

TEST(Documented, AttentionHasTheRangesOfItsPage) {
  EXPECT_EQ(AttentionCall{}.forward(), "");
  const Sizes flat = {64, 2, 1024}, flat_k = {64, 2, 256};
  EXPECT_EQ((AttentionCall{.layout = "SBH", .q = flat, .k = flat_k, .keep = 0.9, .mode = 0}.forward()), "");
  EXPECT_THAT((AttentionCall{.k = {2, 64, 3, 128}}.forward()), HasSubstr("multiple of those of the key"));
  EXPECT_THAT((AttentionCall{.q = {2, 64, 8, 769}, .k = {2, 64, 2, 769}}.forward()), HasSubstr("769 elements"));
  EXPECT_THAT((AttentionCall{.q = {2, 64, 257, 8}, .k = {2, 64, 1, 8}, .heads = 257}.forward()),
              HasSubstr("257 heads"));
  EXPECT_THAT((AttentionCall{.k = {1, 64, 2, 128}}.forward()), HasSubstr("one B"));
  EXPECT_THAT(AttentionCall{.keep = 0}.forward(), HasSubstr("keepProb"));
  EXPECT_THAT(AttentionCall{.mode = 7}.forward(), HasSubstr("sparseMode"));
  EXPECT_THAT((AttentionCall{.layout = "SBH", .q = {64, 2, 1020}, .k = flat_k}.forward()),
              HasSubstr("multiple of the heads"));
  const AttentionCall packed{.layout = "TND", .q = {64, 8, 128}, .k = {64, 2, 128}};
  EXPECT_EQ(packed.forward("aclnnFlashAttentionVarLenScore"), "");
}

TEST(Documented, SparseModesOfAttentionTakeOneTriangle) {
  for (const int64_t mode : {2, 3, 4}) {
    EXPECT_EQ(AttentionCall{.mode = mode}.forward(), "");
    EXPECT_THAT((AttentionCall{.mode = mode, .mask = {64, 64}}.forward()), HasSubstr("2048 x 2048"));
    EXPECT_THAT((AttentionCall{.mode = mode, .mask = {}}.forward()), HasSubstr("without a mask"));
  }
  EXPECT_EQ((AttentionCall{.mode = 0, .mask = {}}.forward()), "");
}

TEST(Documented, TheDerivativeOfAttentionTakesStatisticsOfEightCopies) {
  const AttentionCall call;
  EXPECT_EQ(call.backward(call.q, {2, 8, 64, 8}), "");
  EXPECT_THAT(call.backward({2, 64, 4, 128}, {2, 8, 64, 8}), HasSubstr("dy"));
  EXPECT_THAT(call.backward(call.q, {2, 8, 64, 1}), HasSubstr("softmaxMax"));
  EXPECT_THAT(call.backward(call.q, {16, 64, 8}), HasSubstr("softmaxMax"));
}

TEST(Documented, UpdatesOfRingAttentionTakePackedHeadsOfMultiplesOf64) {
  const auto update = [](const char* layout, Sizes values, Sizes row_max, bool has_ends) {
    Call call;
    call.arguments.texts = {layout, ""};
    for (int i = 0; i < 2; ++i) call.tensor(kF, values).tensor(kF, row_max).tensor(kF, row_max);
    if (has_ends) call.tensor(kLong, {3});
    return (has_ends ? call : missing(call, 1)).complaint("aclnnRingAttentionUpdateV2");
  };
  EXPECT_EQ(update("SBH", {16, 1, 96}, {1, 4, 16, 8}, false), "");
  EXPECT_EQ(update("TND", {16, 4, 64}, {16, 4, 8}, true), "");
  EXPECT_THAT(update("TND", {16, 4, 96}, {16, 4, 8}, true), HasSubstr("multiple of 64"));
  EXPECT_THAT(update("TND", {16, 4, 64}, {16, 4, 8}, false), HasSubstr("actualSeqQlen"));
  EXPECT_THAT(update("SBH", {16, 1, 96}, {1, 4, 16}, false), HasSubstr("statistics"));
  EXPECT_THAT(update("BSND", {16, 1, 96}, {1, 4, 16, 8}, false), HasSubstr("layout"));
}

TEST(Documented, GroupedProductsHaveSizesBelow65536) {
  const auto product = [](Sizes x, Sizes weight, int64_t group_type, int64_t groups, abi::aclDataType type = kB) {
    const auto dense = [](Sizes sizes) {
      Sizes strides(sizes.size(), 1);
      for (size_t i = sizes.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * sizes[i + 1];
      return strides;
    };
    const TensorView a{.sizes = x, .strides = dense(x), .offset = 0, .dtype = kB, .format = 2, .storage = {}};
    const TensorView b{
        .sizes = weight, .strides = dense(weight), .offset = 0, .dtype = type, .format = 2, .storage = {}};
    Call call;
    call.tensor(kLong, {groups});
    call.arguments.lists = {{&a}, {&b}, {&a}};
    call.arguments.integers = {3, group_type, 0, 0};
    return call.complaint("aclnnGroupedMatmulV5");
  };
  EXPECT_EQ(product({100, 64}, {4, 64, 32}, 0, 4), "");
  EXPECT_EQ(product({64, 100}, {100, 32}, 2, 4), "");
  EXPECT_THAT(product({100, 64}, {4, 64, 32}, 0, 1025), HasSubstr("1 to 1024"));
  EXPECT_THAT(product({100, 64}, {4, 64, 65536}, 0, 4), HasSubstr("below 65536"));
  EXPECT_THAT(product({100, 64}, {64, 32}, 0, 4), HasSubstr("[g, k, n]"));
  EXPECT_THAT(product({100, 64}, {4, 64, 32}, 1, 4), HasSubstr("groupType"));
  EXPECT_THAT(product({100, 64}, {4, 64, 32}, 0, 4, kHalf), HasSubstr("one of the types"));
}

TEST(Documented, AddedProductsAreOf16BitTypes) {
  const auto product = [](abi::aclDataType type, Sizes y, int64_t group_type) {
    Call call;
    call.arguments.integers = {group_type};
    return call.tensor(type, {100, 8})
        .tensor(type, {100, 16})
        .tensor(kLong, {4})
        .tensor(kF, y)
        .complaint("aclnnGroupedMatmulAdd");
  };
  EXPECT_EQ(product(kB, {32, 16}, 2), "");
  EXPECT_THAT(product(kF, {32, 16}, 2), HasSubstr("combination of types"));
  EXPECT_THAT(product(kB, {8, 16}, 2), HasSubstr("[g m, n]"));
  EXPECT_THAT(product(kB, {4, 8, 16}, 2), HasSubstr("1 to 2 dimensions"));
  EXPECT_THAT(product(kB, {32, 16}, 0), HasSubstr("groupType"));
}

TEST(Documented, TokensHaveAtMost512ChoicesAnd16777214Places) {
  const auto permuted = [](Sizes indices, Sizes rows, Sizes sorted) {
    Call call;
    call.arguments.integers = {0};
    return call.tensor(kB, {indices[0], 8})
        .tensor(kLong, indices)
        .tensor(kB, rows)
        .tensor(kInt, sorted)
        .complaint("aclnnMoeTokenPermute");
  };
  EXPECT_EQ(permuted({10, 4}, {40, 8}, {40}), "");
  EXPECT_EQ(permuted({10}, {10, 8}, {10}), "");
  EXPECT_THAT(permuted({10, 513}, {5130, 8}, {5130}), HasSubstr("512"));
  EXPECT_THAT(permuted({1 << 22, 4}, {1 << 24, 8}, {1 << 24}), HasSubstr("16777215"));
  EXPECT_THAT(permuted({10, 4}, {40, 8}, {10, 4}), HasSubstr("sortedIndices"));
  EXPECT_THAT(permuted({10, 4}, {39, 8}, {40}), HasSubstr("number of rows"));
  const auto gradient = [](int64_t k, Sizes out) {
    Call call;
    call.arguments.integers = {k};
    return call.tensor(kB, {40, 8}).tensor(kInt, {40}).tensor(kB, out).complaint("aclnnMoeTokenPermuteGrad");
  };
  EXPECT_EQ(gradient(4, {10, 8}), "");
  EXPECT_THAT(gradient(513, {10, 8}), HasSubstr("numTopk"));
  EXPECT_THAT(gradient(4, {20, 8}), HasSubstr("[tokens, hidden]"));
  const auto restored = [](abi::aclDataType indices, Sizes probs, Sizes out) {
    return Call{}
        .tensor(kB, {40, 8})
        .tensor(indices, {40})
        .tensor(kF, probs)
        .tensor(kB, out)
        .complaint("aclnnMoeTokenUnpermute");
  };
  EXPECT_EQ(restored(kInt, {10, 4}, {10, 8}), "");
  EXPECT_THAT(restored(kLong, {10, 4}, {10, 8}), HasSubstr("combination of types"));
  EXPECT_THAT(restored(kInt, {10, 2}, {10, 8}), HasSubstr("[tokens k, hidden]"));
  Call back;
  back.tensor(kB, {40, 8}).tensor(kB, {10, 8}).tensor(kInt, {40}).tensor(kF, {10, 4}).tensor(kB, {40, 8});
  EXPECT_EQ(back.complaint("aclnnMoeTokenUnpermuteGrad"), "");
  back.views[4].sizes = {10, 8};
  EXPECT_THAT(back.complaint("aclnnMoeTokenUnpermuteGrad"), HasSubstr("one shape"));
}

TEST(Documented, GegluHalvesOneDimensionInTwoForms) {
  const auto geglu = [](Sizes gelu, int64_t form) {
    Call call;
    call.arguments.integers = {-1, form};
    return call.tensor(kB, {2, 6}).tensor(kB, {2, 3}).tensor(kB, gelu).complaint("aclnnGeGluV3");
  };
  EXPECT_EQ(geglu({2, 3}, 1), "");
  EXPECT_THAT(geglu({2, 3}, 2), HasSubstr("approximate"));
  EXPECT_THAT(geglu({2, 6}, 1), HasSubstr("outGelu"));
  Call back;
  back.arguments.integers = {-1, 0};
  back.tensor(kB, {2, 3}).tensor(kB, {2, 6}).tensor(kB, {2, 3}).tensor(kB, {2, 6});
  EXPECT_EQ(back.complaint("aclnnGeGluV3Backward"), "");
  back.views[3].sizes = {2, 3};
  EXPECT_THAT(back.complaint("aclnnGeGluV3Backward"), HasSubstr("shape of x"));
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
  EXPECT_EQ(documented_operators().size(), 26u);
}

}  // namespace
}  // namespace concord::ascend::sim
