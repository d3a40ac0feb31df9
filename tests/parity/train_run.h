// Training runs of tests/golden/train on this rank: 20 steps of hf/qwen2-tiny under any layout, for tests that compare
// them with PyTorch's or with each other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/data_parallel/ddp.h"
#include "core/models/auto_model.h"
#include "core/optim/optimizer.h"

namespace concord::tests {

struct Checksum {
  double sum = 0;
  double sumsq = 0;
  double ramp = 0;  // sum_i w_i * (i mod 251) / 251 over the flat tensor
};

// What PyTorch did, or we.
struct TrainRecord {
  struct Step {
    double loss = 0;
    double grad_norm = 0;
  };
  std::vector<Step> steps;
  std::map<std::string, Checksum> final_weights;  // by the names of HF
  std::vector<std::byte> bits;                    // of this rank's parameters after bits_after_step; only ours
};

// tests/golden/train/<name>.json.
struct TrainGolden {
  explicit TrainGolden(const std::string& name);

  std::string labels;  // the tensor with the labels
  int64_t micro_batches = 1;
  double weight_decay = 0;
  OptimizerOptions optimizer;
  std::vector<double> lr;
  TrainRecord record;
  std::map<std::string, int64_t> elements;  // of each weight
};

struct TrainOptions {
  DataParallelOptions ddp = {};
  bool sequence_parallel = false;
  c10::ScalarType dtype = c10::kFloat;
  double offload = 0;  // fraction
  double loss_scale = 1;
  std::string schedule = {};   // of a pipeline, by kind; empty: one micro-batch after the other, without an executor
  int64_t micro_batches = 0;   // 0: as the golden run has them
  size_t bits_after_step = 0;  // of TrainRecord::bits; 0: the last
  int64_t tokens_factor = 1;   // tokens are counted so many times, as ROLL does under context parallelism
};

// Every rank of |job| calls it.
TrainRecord train_like(const TrainGolden& golden, ParallelContext& job, const TrainOptions& options);

}  // namespace concord::tests
