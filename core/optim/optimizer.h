// Updates of parameters from their gradients, over the flat memory of core/data_parallel: AdamW, Lion, Muon or SGD,
// fp32 main weights for 16-bit ones, clipping by the global norm, steps skipped on overflow, an average of the weights.
//
// It works on the parts that this rank owns (GradBuffer::owned). Without the distributed optimizer that is everything,
// and all data-parallel ranks compute the same bits; with it (ZeRO-1) it is a shard of each bucket, whose state only
// this rank has, and step() ends by gathering the parameters. Nothing else differs.
//
// step(): every rank of the job calls it. Gradients are divided by grad_divisor; the norm counts each element of the
// model once, over tensor, pipeline, expert and data parallel ranks and for embeddings on two stages; where it is not
// finite on any rank nothing is changed on all of them. Threads: the one that computes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/read/optimizer_state.h"
#include "core/data_parallel/ddp.h"
#include "core/optim/optimizer_options.h"

namespace concord {

// What a parameter's group multiplies the step's learning rate and weight decay by.
struct GroupMultipliers {
  double lr = 1;
  double weight_decay = 1;
  bool decoupled = false;  // of StepSettings::decoupled_lr instead of lr

  auto operator<=>(const GroupMultipliers&) const = default;
};
using Multipliers = std::function<GroupMultipliers(const Parameter&)>;
// No decay for parameters with one dimension and for biases.
GroupMultipliers default_multipliers(const Parameter& parameter);

struct StepSettings {
  double lr = 0;
  double weight_decay = 0;
  // What the gradients are divided by: what the loss was multiplied by (core/optim/loss_scaler.h), and the step's
  // tokens where finalize_grads has not divided by them.
  double grad_divisor = 1;
  double decoupled_lr = 0;  // of groups that are decoupled
};

struct StepResult {
  bool updated = false;   // false: a gradient overflowed somewhere, and nothing changed anywhere
  double grad_norm = 0;   // before clipping, divided by grad_divisor; not finite where not updated
  int64_t zeros = 0;      // elements of the gradient that are 0, with log_num_zeros_in_grad
  bool is_begun = false;  // the device has made its part of the update already, by the same rule
};

class Optimizer {
 public:
  // Throws ConfigError for an invalid name or number. |ddp| outlives it.
  Optimizer(DistributedDataParallel& ddp, OptimizerOptions options,
            const Multipliers& multipliers = default_multipliers);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Waits: for the gradient norm, on the host.
  StepResult step(const StepSettings& settings);
  // Its two halves, for callers that decide in between: the norm and the zeros; |updated| says whether an update can be
  // made. And the update from the gradients that were measured.
  StepResult measure(double grad_divisor);
  void update(const StepSettings& settings, const StepResult& measured);
  // As measure, for callers that will update if the norm is finite, and |loss|, one number on the device, if it is
  // given. On a device AdamW's update is enqueued before the host waits for the norm, and the device itself decides.
  // update() is called afterwards as after measure().
  StepResult measure_and_launch_update(const StepSettings& settings, const std::optional<at::Tensor>& loss = {});

  // Of all weights that are updated, each counted once. Every rank calls it. Waits: for all ranks.
  double params_norm() const;

  int64_t steps() const;        // that updated
  int64_t state_bytes() const;  // of moments and main weights on this rank, on the host or the device

  // The part of the state that this rank owns, under global names and indices, copied to the host.
  OptimizerState state() const;
  // The same without copies, and so that over all ranks, or all |writers|, each element of the model is there once:
  // what a checkpoint writes. Values are on the host or the device, and change with the next step.
  std::vector<OptimizerState::Entry> saved_state(const std::optional<RankRange>& writers = {}) const;
  // Which tensors the state of this rank's stage consists of, the parts of all ranks together: a key and the parameter.
  std::vector<std::pair<std::string, const Parameter*>> state_tensors() const;
  // Reads what this rank owns. Throws what |source| throws. With |share_reads| all ranks load together, at the same
  // time: what data-parallel ranks own alike each reads a share of and sends it to the others, and where one fails all
  // throw. Waits: with it, and for 16-bit parameters, for all ranks.
  void load_state(const StateSource& source, bool share_reads = false);

  // With ema_decay: the model's weights become the average and the average the weights; a second call undoes it, bit
  // for bit. No step, state or checkpoint in between. Every rank calls it. Waits: for all ranks with shards.
  bool keeps_average() const;
  void swap_ema_weights();

  // Main weights follow parameters that were changed from outside (weights loaded after the optimizer was made).
  void reload_main_weights();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace concord
