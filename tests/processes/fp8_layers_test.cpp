// The history of delayed scaling: amax of an FP8 layer over all ranks that hold it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/models/precision/fp8_layers.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

constexpr int64_t kRanks = 3, kLayers = 2, kTensors = 3, kSteps = 2;

// Returns the amax of a tensor on |rank| in a step. The rank with the largest one differs from tensor to tensor.
float seen_by(int64_t rank, int64_t step, int64_t layer, int64_t tensor) {
  return static_cast<float>(1 + (4 * rank + 7 * step + 5 * layer + 3 * tensor) % 11);
}

float seen_by_all(int64_t step, int64_t layer, int64_t tensor) {
  float largest = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) largest = std::max(largest, seen_by(rank, step, layer, tensor));
  return largest;
}

struct Remembered {
  Fp8Layers layers;
  std::vector<Fp8Layer*> each;

  explicit Remembered(c10::Device device) : layers({.format = Fp8Formats::hybrid, .amax_history_len = kSteps}, device) {
    for (int64_t i = 0; i < kLayers; ++i) each.push_back(layers.add("layer" + std::to_string(i)));
    layers.count_inputs(true);
  }
  static std::vector<Fp8Scaling*> tensors(Fp8Layer& layer) { return {&layer.input, &layer.weight, &layer.grad}; }

  void see(int64_t rank, int64_t step, float factor = 1) {
    for (size_t i = 0; i < each.size(); ++i) {
      for (size_t t = 0; t < kTensors; ++t) {
        const float value = seen_by(rank, step, static_cast<int64_t>(i), static_cast<int64_t>(t)) * factor;
        tensors(*each[i])[t]->seen.fill_(value);
      }
    }
  }
  // Expects the history of |steps|, the latest first, and its maximum as the amax for scales.
  void expect(const std::vector<int64_t>& steps) {
    const at::Tensor history = layers.saved(true).parts.at(0).values.view({kLayers, kSteps, kTensors});
    for (int64_t i = 0; i < kLayers; ++i) {
      for (int64_t t = 0; t < kTensors; ++t) {
        float largest = 0;
        for (int64_t s = 0; s < std::ssize(steps); ++s) {
          const float wanted = seen_by_all(steps[static_cast<size_t>(s)], i, t);
          EXPECT_EQ(history[i][s][t].item<float>(), wanted) << "layer " << i << ", step " << s << ", tensor " << t;
          largest = std::max(largest, wanted);
        }
        const Fp8Scaling& own = *tensors(*each[static_cast<size_t>(i)])[static_cast<size_t>(t)];
        EXPECT_EQ(own.amax.item<float>(), largest) << "layer " << i << ", tensor " << t;
        EXPECT_EQ(own.seen.item<float>(), 0);
      }
    }
  }
};

TEST(Fp8Layers, RememberTheLargestValuesOfAllRanks) {
  expect_job(kRanks, {}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::tp_dp_cp);
    const int64_t rank = job.rank();
    Remembered own(job.torch_device());
    for (int64_t step = 0; step < 3; ++step) {
      own.see(rank, step);
      own.layers.end_step(true, group);
      own.expect(step == 0 ? std::vector<int64_t>{0} : std::vector{step, step - 1});
    }
    own.see(rank, 3, 100);  // a skipped step
    own.layers.end_step(false, group);
    own.expect({2, 1});
  });
}

// A rank with a NaN makes all ranks keep the previous maximum.
TEST(Fp8Layers, RememberNothingThatIsNotFinite) {
  expect_job(2, {}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::tp_dp_cp);
    Remembered own(job.torch_device());
    own.each[0]->input.seen.fill_(static_cast<float>(3 + job.rank()));
    own.layers.end_step(true, group);
    own.each[0]->input.seen.fill_(job.rank() == 0 ? std::numeric_limits<float>::infinity() : 1);
    own.layers.end_step(true, group);
    EXPECT_EQ(own.each[0]->input.amax.item<float>(), 4);
    const at::Tensor history = own.layers.saved(true).parts.at(0).values.view({kLayers, kSteps, kTensors});
    EXPECT_EQ(history[0][0][0].item<float>(), 4);
  });
}

}  // namespace
}  // namespace concord::tests
