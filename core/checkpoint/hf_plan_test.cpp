#include "core/checkpoint/hf_plan.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {
namespace {

using safetensors::DType;
using safetensors::TensorShape;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HfPlan, NamesTheTensorsOfAParameter) {
  const ShardSpec plain{.name = "embed", .dims = {{50, ShardAxis::tp, 64}, {24, {}}}};
  EXPECT_THAT(global_tensors(plain), ElementsAre(GlobalTensor{"embed", {50, 24}}));
  ShardSpec qkv{.name = "qkv", .dims = {{48, ShardAxis::tp}, {24, {}}}};
  qkv.pieces = {{"q", 24}, {"k", 12}, {"v", 12}};
  EXPECT_THAT(global_tensors(qkv),
              ElementsAre(GlobalTensor{"q", {24, 24}}, GlobalTensor{"k", {12, 24}}, GlobalTensor{"v", {12, 24}}));
  ShardSpec experts{
      .name = "e", .dims = {{2, ShardAxis::ep}, {32, ShardAxis::etp}, {24, {}}}, .fused_dim = 1, .stacked = true};
  experts.pieces = {{"e.{}.gate", 16}, {"e.{}.up", 16}};
  EXPECT_THAT(global_tensors(experts),
              ElementsAre(GlobalTensor{"e.0.gate", {16, 24}}, GlobalTensor{"e.1.gate", {16, 24}},
                          GlobalTensor{"e.0.up", {16, 24}}, GlobalTensor{"e.1.up", {16, 24}}));
}

// Returns the number of |ranks| that write each element of each tensor.
std::map<std::string, std::vector<int>> writers_of(const ShardSpec& spec, const RankLayout& layout,
                                                   const RankRange& ranks, const std::optional<RankRange>& together) {
  std::map<std::string, std::vector<int>> writers;
  for (const GlobalTensor& tensor : global_tensors(spec)) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    writers[tensor.name].assign(static_cast<size_t>(elements), 0);
  }
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    for (const ShardRun& run : written_part(spec, layout, rank, together).runs) {
      for (int64_t i = 0; i < run.count; ++i)
        ++writers.at(
            run.tensor)[static_cast<size_t>(run.offset + i / run.run_length * run.run_stride + i % run.run_length)];
    }
  }
  return writers;
}

// Every element has one writer: the runs of all ranks that write cover each tensor exactly once.
TEST(HfPlan, HasOneWriterForEveryElementUnderEveryLayout) {
  const ShardSpec cut{.name = "o", .dims = {{24, {}}, {48, ShardAxis::tp}}, .replicated_over = {GroupKind::dp_cp}};
  const ShardSpec whole{.name = "norm", .dims = {{24, {}}}, .replicated_over = {GroupKind::tp, GroupKind::dp_cp}};
  const ShardSpec large{.name = "w", .dims = {{240, {}}, {96, ShardAxis::tp}}, .replicated_over = {GroupKind::dp_cp}};
  const ShardSpec expert{.name = "e.{}",
                         .dims = {{4, ShardAxis::ep}, {8, ShardAxis::etp}},
                         .stacked = true,
                         .replicated_over = {GroupKind::edp}};
  for (const ParallelSizes& sizes :
       {ParallelSizes{.world = 1}, ParallelSizes{.world = 8, .tensor = 2},
        ParallelSizes{.world = 8, .tensor = 2, .context = 2},
        ParallelSizes{.world = 16, .tensor = 2, .context = 2, .expert = 4, .expert_tensor = 1},
        ParallelSizes{.world = 8, .tensor = 4, .order = "dp-tp-cp-ep-pp"}}) {
    const RankLayout layout(sizes);
    for (const ShardSpec& spec : {cut, whole, large, expert}) {
      const auto writers = writers_of(spec, layout, {0, layout.world()}, {});
      for (const auto& [name, counts] : writers) EXPECT_THAT(counts, ::testing::Each(1)) << name;
    }
  }
}

TEST(HfPlan, RanksWithTheSameElementsDivideThem) {
  const ShardSpec spec{
      .name = "w", .dims = {{400, {}}, {100, {}}}, .replicated_over = {GroupKind::tp, GroupKind::dp_cp}};
  const RankLayout layout({.world = 4, .tensor = 2});
  for (int64_t rank = 0; rank < 4; ++rank) {
    const WrittenPart part = written_part(spec, layout, rank);
    EXPECT_EQ(part.end - part.begin, 10'000) << rank;
  }
  const ShardSpec norm{.name = "n", .dims = {{400, {}}}, .replicated_over = {GroupKind::tp, GroupKind::dp_cp}};
  EXPECT_EQ(written_part(norm, layout, 0).end, 400);
  EXPECT_EQ(written_part(norm, layout, 3).runs.size(), 0u);
}

// Each machine can write everything alone: its own ranks divide their replicated elements.
TEST(HfPlan, HasOneWriterForEveryElementOnEveryMachine) {
  const ShardSpec cut{.name = "o", .dims = {{240, {}}, {96, ShardAxis::tp}}, .replicated_over = {GroupKind::dp_cp}};
  const ShardSpec whole{
      .name = "w", .dims = {{240, {}}, {96, {}}}, .replicated_over = {GroupKind::tp, GroupKind::dp_cp}};
  const ShardSpec expert{.name = "e.{}",
                         .dims = {{2, ShardAxis::ep}, {20'000, ShardAxis::etp}},
                         .stacked = true,
                         .replicated_over = {GroupKind::edp}};
  const ShardSpec bias{.name = "b.{}",
                       .dims = {{2, ShardAxis::ep}, {20'000, {}}},
                       .stacked = true,
                       .replicated_over = {GroupKind::etp, GroupKind::edp}};
  for (const ParallelSizes& sizes : {ParallelSizes{.world = 8}, ParallelSizes{.world = 8, .tensor = 2},
                                     ParallelSizes{.world = 8, .tensor = 2, .context = 2},
                                     ParallelSizes{.world = 8, .tensor = 2, .expert = 2, .expert_tensor = 1},
                                     ParallelSizes{.world = 8, .tensor = 2, .expert = 2, .expert_tensor = 2},
                                     ParallelSizes{.world = 8, .tensor = 2, .context = 2, .order = "cp-tp-ep-dp-pp"}}) {
    const RankLayout layout(sizes);
    for (const RankRange machine : {RankRange{0, 4}, RankRange{4, 8}}) {
      for (const ShardSpec& spec : {cut, whole, expert, bias}) {
        for (const auto& [name, counts] : writers_of(spec, layout, machine, machine)) {
          EXPECT_TRUE(std::ranges::all_of(counts, [](int count) { return count == 1; }))
              << name << " on " << machine.to_string();
        }
        for (int64_t rank = machine.begin; rank < machine.end; ++rank) {
          EXPECT_FALSE(written_part(spec, layout, rank, machine).runs.empty()) << spec.name << " on rank " << rank;
          EXPECT_EQ(replicas_of(spec, layout, rank, RankRange{0, 8}), replicas_of(spec, layout, rank));
        }
      }
    }
  }
}

TEST(HfPlan, PutsAsManyTensorsIntoAFileAsFit) {
  const std::vector<TensorShape> tensors = {{"layers.10", DType::kF32, {4}},
                                            {"layers.2", DType::kF32, {4}},
                                            {"big", DType::kF32, {20}},
                                            {"z", DType::kBF16, {4}}};
  const HfFolderPlan one = plan_hf_folder(tensors, 1000);
  ASSERT_EQ(one.files.size(), 1u);
  EXPECT_FALSE(one.has_index());
  EXPECT_EQ(one.files[0].name, "model.safetensors");
  EXPECT_EQ(one.total_bytes, 16u + 16 + 80 + 8);
  const HfFolderPlan more = plan_hf_folder(tensors, 40);
  ASSERT_EQ(more.files.size(), 2u);
  EXPECT_TRUE(more.has_index());
  EXPECT_EQ(more.files[1].name, "model-00002-of-00002.safetensors");
  EXPECT_EQ(more.file_of.at("big"), "model-00001-of-00002.safetensors");
  EXPECT_EQ(more.find("layers.2").file, 1u);
  EXPECT_EQ(more.find("layers.2").tensor->begin, 0u);
  EXPECT_EQ(more.find("layers.10").tensor->begin, 16u);
  EXPECT_EQ(plan_hf_folder(tensors, 39).files.size(), 3u);
  EXPECT_EQ(plan_hf_folder({}, 10).files.size(), 1u);
}

TEST(HfPlan, TakesATensorOfTwoStagesOnce) {
  const auto words = [](const TensorShape& other) -> std::string {
    try {
      return std::to_string(plan_hf_folder({{"w", DType::kF32, {4}}, other}, 100).file_of.size());
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(words({"w", DType::kF32, {4}}), "1");
  EXPECT_THAT(words({"w", DType::kBF16, {4}}),
              HasSubstr("tensor w is [4] in F32 on one rank, but [4] in BF16 on another"));
  EXPECT_THAT(words({"w", DType::kF32, {5}}), HasSubstr("[5]"));
  EXPECT_THROW(plan_hf_folder({}, 0), ConfigError);
}

}  // namespace
}  // namespace concord
