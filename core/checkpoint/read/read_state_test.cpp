// States that are read in pieces, on the device of the platform that the program runs on.
#include "core/checkpoint/read/read_state.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "core/torch/device.h"

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

// A piece and 1,000 elements more.
TEST_F(ReadState, BeyondTheDefaultSizeOfAPieceIsWhole) {
  const std::vector<StateTarget> targets = {target("exp_avg", kStatePieceElements / 4 + 250)};
  read_state(Addresses(), targets, device_);
  expect_read(targets.front(), "the default size");
}

}  // namespace
}  // namespace concord
