// Golden models of transformers run under a layout of ours, in real processes.
#pragma once

#include <filesystem>
#include <string>

#include "core/checkpoint/tensor_files.h"
#include "core/models/auto_model.h"
#include "tests/processes/groups/group_job.h"
#include "trainer/probe.h"

namespace concord::tests {

std::filesystem::path golden(const std::string& path);
TensorMap read_tensors(const std::string& path);  // all of a safetensors file, on the host

// How a job of some processes runs a model.
struct Layout {
  const char* name = "one process";
  int world = 1;
  InitializeArgs sizes = {};
  ModelArgs args = {};
  std::string config = "config.json";
  // Mistakes made on purpose.
  std::function<void(ModelConfig&)> spoil_config = {};
  std::function<void(VirtualModels&)> spoil_model = {};
};

inline Layout layout(const char* name, int64_t tp, int64_t cp, bool sequence_parallel = false, int64_t pp = 1,
                     int64_t vpp = 1, int64_t dp = 1) {
  Layout result{name, static_cast<int>(tp * cp * pp * dp)};
  result.sizes.tensor_model_parallel_size = tp;
  result.sizes.context_parallel_size = cp;
  result.sizes.pipeline_model_parallel_size = pp;
  result.sizes.virtual_pipeline_model_parallel_size = vpp;
  result.args.options.sequence_parallel = sequence_parallel;
  return result;
}

// Experts split over |ep| of its ranks, and each of them over |etp|.
inline Layout with_experts(Layout base, int64_t ep, int64_t etp) {
  base.sizes.expert_model_parallel_size = ep;
  base.sizes.expert_tensor_parallel_size = etp;
  return base;
}

// The bounds of golden/README.md.
struct Bounds {
  double logits = 2e-5;  // absolute
  double loss = 5e-6;
  double gradient = 2e-5;                            // norm of the difference / norm of the reference, for each tensor
  double logits_norm = 2e-5, gradients_norm = 2e-5;  // the same ratio, for logits and for all gradients together
};

// The largest difference as a share of its bound.
double share_of_bounds(const ProbeResult& result, const TensorMap& expected, const Bounds& bounds = {});

// Expects |result| within |bounds| of |expected|, and a gradient for each that is expected and no other.
void expect_parity(const ProbeResult& result, const TensorMap& expected, const Bounds& bounds = {});

// The batch of an expected.safetensors.
MicroBatch golden_batch(const TensorMap& expected);

// Every rank loads |folder|'s weights and probes |batch|; |check| gets the result on rank 0.
using Check = std::function<void(const ProbeResult&)>;
void run_golden(const std::filesystem::path& folder, const Layout& layout, const MicroBatch& batch, const Check& check,
                const ProbeOptions& options = {.grads = true});

}  // namespace concord::tests
