// The placement plan of a run's memory: for every class of tensor on one rank its type, its place, its bytes and when
// it moves. A printable value (`concord plan --memory`), computed before anything is allocated, by a pure function of
// the plan of the run. Needs no libtorch.
//
// The state is exact: it follows the functions that allocate it (plan_parameters, plan_buckets, plan_state). Saved
// activations are those of core/parallel/memory/activation_memory.h, which measurements confirm for dense layers;
// layers with experts, latent attention or gated delta nets are estimated by their largest tensors. Not counted: what a
// device's runtime takes for itself and fragmentation (expected_in_use), and tensors of a few MB, such as token ids
// and rope's angles. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "core/mesh/rank_layout.h"
#include "trainer/plan.h"

namespace concord {

enum class TensorClass {
  weights,
  frozen_weights,
  fp8_weights,
  gradients,
  gradient_sums,
  main_weights,
  first_moments,
  second_moments,
  average,
  reference,
  optimizer_scratch,
  stream_buffers,
  layer_inputs,
  norm_outputs,
  attention,
  mlp,
  logits,
  recomputed,
  dequantised,
  activation_gradients,
  communication,
};
template <>
inline constexpr std::string_view kEnumNames<TensorClass>[] = {
    "weights",       "frozen weights",  "fp8 weights",       "gradients",
    "gradient sums", "main weights",    "first moments",     "second moments",
    "EMA",           "reference model", "optimizer scratch", "stream buffers",
    "layer inputs",  "norm outputs",    "attention",         "MLP",
    "logits",        "recomputed",      "dequantised",       "activation gradients",
    "communication"};

// Other ranks' memory becomes a place with fully sharded data parallelism.
enum class Place { device, host };
template <>
inline constexpr std::string_view kEnumNames<Place>[] = {"device", "host"};

// When a tensor exists and is copied to its place.
enum class Moves {
  never,      // stays there during the run
  each_step,  // a copy there, filled from the device's or sent to it at every update
  streamed,   // stays there, and passes through the device at every update, in chunks
  forward,    // from the forward pass of a micro-batch to its backward pass
  loss,       // while the loss is computed, if that is when most memory is in use
  layer,      // while backward is in one layer, likewise
};
template <>
inline constexpr std::string_view kEnumNames<Moves>[] = {
    "never",           "at every update",          "through the device", "forward to backward",
    "during the loss", "during a layer's backward"};

struct PlacedTensors {
  TensorClass kind = TensorClass::weights;
  std::string type;  // fp32, bf16, fp16, 8bit, remainder, nf4, fp8
  Place place = Place::device;
  Moves moves = Moves::never;
  int64_t bytes = 0;
  int64_t least = 0;  // a run with these settings has at least these bytes
  bool operator==(const PlacedTensors&) const = default;
};

struct MemoryPlan {
  std::vector<PlacedTensors> tensors;

  // Adds |more| to the tensors of the same class, type, place and time.
  void add(const PlacedTensors& more);
  int64_t peak(Place place) const;   // most bytes at a time
  int64_t least(Place place) const;  // a lower bound of peak() that does not depend on estimates
  int64_t bytes(TensorClass kind, Place place = Place::device) const;
  bool operator==(const MemoryPlan&) const = default;
};

// Tokens of the micro-batches of a run.
struct MicroBatchShape {
  int64_t rows = 1;
  int64_t tokens = 0;          // of a row
  bool has_full_rows = false;  // all rows have that length; otherwise it is their maximum
};
// Returns that of |plan|: rows of seq_length tokens, or else cutoff_len, or else as many as the model allows. All are
// known to have that length if the plan has data that is cut from documents.
MicroBatchShape micro_batch_shape(const TrainingPlan& plan);

// Returns the plan of |rank|. |plan| may be a plan_model(). Throws ConfigError if the model does not fit the layout.
MemoryPlan plan_memory(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, const MicroBatchShape& batch);

// Returns the memory in use on a device, as its driver reports it, if its tensors have |peak| bytes: with the runtime,
// workspaces of GEMMs and what libtorch's allocator cannot fill, 1.1 GiB and 1.2 %. Both are fitted to 14 runs of 0.5B
// to 7B on an H200, all of them within 1.5 %. Where memory is left, libtorch keeps more.
int64_t expected_in_use(int64_t peak);

// Returns the plan with the highest device peak over the stages of the pipeline, and its rank.
struct RankMemory {
  int64_t rank = 0;
  MemoryPlan memory;
};
RankMemory largest_memory_plan(const TrainingPlan& plan, const RankLayout& layout, const MicroBatchShape& batch);

// Return a table with totals, and a JSON document.
std::string to_text(const MemoryPlan& memory);
std::string to_json(const MemoryPlan& memory);

}  // namespace concord
