// Training runs of tests/golden/train on this rank: 20 steps of hf/qwen2-tiny with any layout, for tests that compare
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

// The results of a run, PyTorch's or ours.
struct TrainRecord {
  struct Step {
    double loss = 0;
    double grad_norm = 0;
  };
  std::vector<Step> steps;
  std::map<std::string, Checksum> final_weights;  // by HF name
  std::vector<std::byte> bits;                    // this rank's parameters after bits_after_step; ours only
};

// tests/golden/train/<name>.json.
struct TrainGolden {
  explicit TrainGolden(const std::string& name);

  std::string labels;  // name of the tensor with the labels
  int64_t micro_batches = 1;
  double weight_decay = 0;
  OptimizerOptions optimizer;
  std::vector<double> lr;
  TrainRecord record;
  std::map<std::string, int64_t> elements;  // number of elements per weight
};

struct TrainOptions {
  DataParallelOptions ddp = {};
  bool sequence_parallel = false;
  CpCommType cp_comm_type = CpCommType::p2p;
  RecomputeArgs recompute = {};
  int64_t mlp_tiles = 1;
  ActivationOffloadArgs offload_activations = {};
  c10::ScalarType dtype = c10::kFloat;
  double offload = 0;  // fraction
  double loss_scale = 1;
  std::string schedule = {};   // kind of pipeline schedule; empty: one micro-batch after the other, without an executor
  int64_t micro_batches = 0;   // 0: same as the golden run
  size_t bits_after_step = 0;  // for TrainRecord::bits; 0: the last step
  int64_t tokens_factor = 1;   // factor of the token count, like ROLL's under context parallelism
};

// Every rank of |job| calls it.
TrainRecord train_like(const TrainGolden& golden, ParallelContext& job, const TrainOptions& options);

}  // namespace concord::tests
