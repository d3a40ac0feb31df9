#include "core/checkpoint/read/optimizer_state.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/checkpoint/optimizer_files.h"
#include "core/checkpoint/read/state_index.h"
#include "core/safetensors/writer.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

// Global indices of a list of runs, by local index.
std::vector<int64_t> addresses(const std::vector<ShardRun>& runs, int64_t count) {
  std::vector<int64_t> result(static_cast<size_t>(count), -1);
  for (const ShardRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      result.at(static_cast<size_t>(run.local + i)) =
          run.offset + i / run.run_length * run.run_stride + i % run.run_length;
    }
  }
  return result;
}

// Columns 4 to 8 of a [6, 12] weight, then 10 elements of another.
std::vector<ShardRun> two_runs() {
  return {{.tensor = "w", .local = 0, .count = 24, .offset = 4, .run_length = 4, .run_stride = 12},
          {.tensor = "b", .local = 24, .count = 10, .offset = 100, .run_length = 10, .run_stride = 10}};
}

TEST(OptimizerState, AnyPartOfRunsKeepsItsAddresses) {
  const std::vector<int64_t> all = addresses(two_runs(), 34);
  for (int64_t begin = 0; begin <= 34; ++begin) {
    for (int64_t end = begin; end <= 34; ++end) {
      const std::vector<int64_t> part = addresses(cut_runs(two_runs(), begin, end), end - begin);
      EXPECT_EQ(part, std::vector<int64_t>(all.begin() + begin, all.begin() + end)) << begin << " " << end;
    }
  }
}

OptimizerState state_of(std::vector<ShardRun> runs, const at::Tensor& values, int64_t steps = 3) {
  return {steps, {{"exp_avg", std::move(runs), values}}};
}

std::string error_of(const std::vector<OptimizerState>& states, const std::vector<ShardRun>& runs) {
  try {
    StateIndex(states).read("exp_avg", runs, at::zeros({1000}));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

// Saved in three parts, read through a run that matches none of them.
TEST(OptimizerState, ValuesAreFoundByTheirGlobalAddress) {
  const at::Tensor values = at::arange(72, at::kFloat);
  const ShardRun whole{.tensor = "w", .local = 0, .count = 72, .offset = 0, .run_length = 72, .run_stride = 72};
  std::vector<OptimizerState> states;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{50, 72}, {0, 7}, {7, 50}}) {
    states.push_back(state_of(cut_runs({whole}, begin, end), values.narrow(0, begin, end - begin).contiguous()));
  }
  const StateIndex index(states);
  EXPECT_EQ(index.steps(), 3);
  const at::Tensor read = at::zeros({24});
  index.read("exp_avg", {two_runs()[0]}, read);
  const std::vector<int64_t> wanted = addresses({two_runs()[0]}, 24);
  for (int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(read[i].item<float>(), static_cast<float>(wanted[static_cast<size_t>(i)]));
  }
}

TEST(OptimizerState, MissingElementsAreNamed) {
  const ShardRun part{.tensor = "w", .local = 0, .count = 10, .offset = 0, .run_length = 10, .run_stride = 10};
  const ShardRun more{.tensor = "w", .local = 0, .count = 16, .offset = 0, .run_length = 16, .run_stride = 16};
  const ShardRun other{.tensor = "v", .local = 0, .count = 2, .offset = 0, .run_length = 2, .run_stride = 2};
  const std::vector<OptimizerState> states{state_of({part}, at::zeros({10}))};
  EXPECT_EQ(error_of(states, {part}), "no error");
  EXPECT_THAT(error_of(states, {more}), HasSubstr("no exp_avg for 6 of 16 elements of w"));
  EXPECT_THAT(error_of(states, {other}), HasSubstr("no exp_avg for 2 of 2 elements of v"));
  EXPECT_THAT(error_of({state_of({}, at::zeros({1}), 3), state_of({}, at::zeros({1}), 4)}, {}),
              HasSubstr("different steps, 3 and 4"));
}

// Reads columns of a matrix in a file into elements starting at the third.
TEST(OptimizerFiles, ReadsEveryRowOfARunFromItsAddress) {
  const tests::TemporaryFolder folder;
  const at::Tensor matrix = at::arange(72, at::kFloat);
  safetensors::Writer writer(folder / "optimizer.safetensors", {{"exp_avg.w", safetensors::DType::kF32, {6, 12}}});
  writer.write("exp_avg.w", 0, {static_cast<const std::byte*>(matrix.const_data_ptr()), matrix.nbytes()});
  writer.finish();
  ShardRun columns = two_runs()[0];
  columns.local = 3;
  const at::Tensor read = at::zeros({30});
  OptimizerFiles(folder.path(), 1).read("exp_avg", {columns}, read);
  const std::vector<int64_t> wanted = addresses({columns}, 30);
  for (int64_t i = 0; i < 30; ++i) {
    const int64_t address = wanted[static_cast<size_t>(i)];
    EXPECT_EQ(read[i].item<float>(), static_cast<float>(std::max<int64_t>(address, 0))) << i;  // -1: not read
  }
}

}  // namespace
}  // namespace concord
