// States that are read in pieces, on the device of the platform that the program runs on.
#include "core/checkpoint/read/read_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "core/torch/device.h"
#include "core/torch/remainder.h"

namespace concord {
namespace {

// A state whose values are a function of their address, key and tensor.
class Addresses : public StateSource {
 public:
  int64_t steps() const override { return 0; }
  void read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const override {
    for (const ShardRun& run : runs) {
      const float name = (key == "exp_avg" ? 0.25f : 0.5f) + (run.tensor == "w" ? 0.0f : 0.125f);
      float* const to = values.narrow(0, run.local, run.count).data_ptr<float>();
      for (int64_t i = 0; i < run.count; ++i) {
        to[i] = name + static_cast<float>(run.offset + i / run.run_length * run.run_stride + i % run.run_length);
      }
    }
  }
};

class ReadState : public ::testing::Test {
 protected:
  // Columns 4 to 8 of a weight of 12 columns, a gap of 6 elements, and 10 elements of another.
  static std::vector<ShardRun> runs(int64_t rows) {
    return {{.tensor = "w", .local = 0, .count = 4 * rows, .offset = 4, .run_length = 4, .run_stride = 12},
            {.tensor = "b", .local = 4 * rows + 6, .count = 10, .offset = 100, .run_length = 10, .run_stride = 10}};
  }
  StateTarget target(const std::string& key, int64_t rows) const {
    return {key, runs(rows), at::full({4 * rows + 16}, 0.0f, at::TensorOptions(memory_).dtype(at::kFloat))};
  }
  static void expect_read(const StateTarget& target, const std::string& what) {
    at::Tensor expected = at::full({target.values.numel()}, 0.0f, at::kFloat);
    Addresses().read(target.key, target.runs, expected);
    EXPECT_TRUE(target.values.cpu().equal(expected)) << target.key << " in " << what;
  }

  StateTarget half(int64_t rows, c10::ScalarType type, double before) const {
    const at::Tensor values = at::full({4 * rows + 16}, before, at::TensorOptions(memory_).dtype(type));
    return {"exp_avg_sq", runs(rows), values, /*splits=*/true};
  }

  const Device device_ = Device(current_platform(), 0);
  const c10::Device memory_ = torch_device(device_.platform(), 0);
};

TEST_F(ReadState, InPiecesOfAnySizeIsTheSame) {
  for (const int64_t elements : {1, 3, 7, 16, 100}) {
    const std::vector<StateTarget> targets = {target("exp_avg", 6), target("exp_avg_sq", 1), target("exp_avg", 5)};
    read_state(Addresses(), targets, device_, elements);
    for (const StateTarget& each : targets) expect_read(each, std::to_string(elements));
  }
}

// Both parts of main weights with a remainder, by several threads, together the fp32 numbers of the source. Elements
// that no run covers become 0 on a device; on the host the high parts keep their bits.
TEST_F(ReadState, SplitsValuesIntoHighPartsAndRemainders) {
  constexpr int64_t kRows = 500;
  constexpr double kBefore = 3;
  for (const int64_t elements : {1, 7, 100, 100000}) {
    const StateTarget high = half(kRows, at::kBFloat16, kBefore), low = half(kRows, at::kShort, kBefore);
    read_state(Addresses(), {high, low, target("exp_avg", 5)}, device_, elements);
    at::Tensor expected = at::full({high.values.numel()}, memory_.is_cpu() ? kBefore : 0.0, at::kFloat);
    Addresses().read(high.key, high.runs, expected);
    const at::Tensor joined = at::empty({high.values.numel()}, at::kFloat);
    join_remainder(high.values.cpu(), low.values.cpu(), joined);
    EXPECT_TRUE(joined.equal(expected)) << elements;
    EXPECT_GT(low.values.ne(0).sum().item<int64_t>(), kRows) << "no number needs a remainder";
  }
}

// A piece and 1,000 elements more.
TEST_F(ReadState, BeyondTheDefaultSizeOfAPieceIsWhole) {
  const std::vector<StateTarget> targets = {target("exp_avg", kStatePieceElements / 4 + 250)};
  read_state(Addresses(), targets, device_);
  expect_read(targets.front(), "the default size");
}

}  // namespace
}  // namespace concord
