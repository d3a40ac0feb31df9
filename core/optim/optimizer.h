// Updates parameters from their gradients, over the flat memory of core/data_parallel: AdamW, Lion, Muon or SGD, with
// fp32 main weights for 16-bit parameters, clipping by the global norm, steps skipped on overflow, and an EMA of the
// weights.
//
// The optimizer works on the elements that this rank owns (GradBuffer::owned). Without the distributed optimizer these
// are all elements, and all data-parallel ranks compute bitwise identical values. With it (ZeRO-1) they are a shard of
// each bucket, only this rank has their state, and step() ends by gathering the parameters.
//
// Every rank of the job calls step(). The norm counts each element of the model once, over tensor, pipeline, expert and
// data-parallel ranks and for embeddings on two stages. If it is not finite on any rank, no rank changes anything.
// Threads: training thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/read/optimizer_state.h"
#include "core/data_parallel/ddp.h"
#include "core/optim/group_multipliers.h"
#include "core/optim/optimizer_options.h"
#include "core/optim/segment.h"

namespace concord {

class Muon;
class Offload;
class StateStream;
class UpdateRule;
struct RuleStep;
struct StateTarget;

struct StepSettings {
  double lr = 0;
  double weight_decay = 0;
  // Divisor of the gradients: the loss scale (core/optim/loss_scaler.h), times the step's tokens unless finalize_grads
  // has divided by them.
  double grad_divisor = 1;
  double decoupled_lr = 0;  // learning rate of decoupled groups
};

struct StepResult {
  bool updated = false;      // false: a gradient overflowed on some rank, and nothing changed on any rank
  double grad_norm = 0;      // before clipping, divided by grad_divisor; not finite unless |updated|
  int64_t zeros = 0;         // elements of the gradient that are 0, with log_num_zeros_in_grad
  bool is_launched = false;  // the device has already applied the update
};

class Optimizer {
 public:
  // |ddp| has to outlive it. Throws ConfigError for an invalid name or number.
  Optimizer(DistributedDataParallel& ddp, OptimizerOptions options,
            const Multipliers& multipliers = default_multipliers);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Measures the gradients and updates the parameters. Waits: for the gradient norm, on the host.
  StepResult step(const StepSettings& settings);
  // First half of step(), for callers that decide in between: returns the norm and the zeros. StepResult::updated is
  // true if update() may be called.
  StepResult measure(double grad_divisor);
  // Second half of step(): updates the parameters from the gradients that were measured.
  void update(const StepSettings& settings, const StepResult& measured);
  // Like measure(), for callers that will call update() if the norm, and |loss| if given, are finite. On a device it
  // launches AdamW's update before the host knows the norm; the kernel skips it unless both are finite. |loss| is one
  // number on the device.
  StepResult measure_and_launch_update(const StepSettings& settings, const std::optional<at::Tensor>& loss = {});

  // Returns the norm of all weights that are updated, each counted once. Every rank calls it. Waits: for all ranks.
  double params_norm() const;

  int64_t steps() const { return steps_; }  // number of updates
  int64_t state_bytes() const;              // bytes of moments, main weights and EMA on this rank, host and device

  // Returns a copy on the host of the state that this rank owns, under global names and indices.
  OptimizerState state() const;
  // Returns the state that this rank writes to a checkpoint, without copies: over all ranks, or all |writers|, each
  // element of the model once. Values are on the host or the device, and change with the next step.
  std::vector<OptimizerState::Entry> saved_state(const std::optional<RankRange>& writers = {}) const;
  // Returns the tensors in the state of this rank's stage, over all ranks.
  std::vector<StateTensor> state_tensors() const;
  // Reads the state that this rank owns. Throws what |source| throws. With |share_reads| all ranks load at the same
  // time: each data-parallel rank reads a part of the state they share and sends it to the others, and if one fails,
  // all throw. Waits: for all ranks, with |share_reads| or 16-bit parameters.
  void load_state(const StateSource& source, bool share_reads = false);

  bool keeps_average() const { return options_.ema_decay > 0; }
  // Like load_state(), but reads only the EMA of the weights.
  void load_average(const StateSource& source, bool share_reads = false);
  // Swaps the model weights with their EMA (ema_decay). A second call restores them bitwise. Do not step, save or load
  // in between. Every rank calls it. Waits: for all ranks, with shards.
  void swap_ema_weights();

  // Copies the parameters to the main weights and the EMA; call after the parameters were changed from outside.
  void reload_main_weights();

 private:
  struct NormAndZeros;  // sums over all ranks, in flight to the host

  // Segments and their tensors.
  void create_segments(const Multipliers& multipliers);
  void allocate(std::span<Segment> segments) const;
  void offload();
  bool is_muon() const { return options_.optimizer == OptimizerType::muon; }
  bool uses_muon(const Parameter& parameter) const;
  std::vector<std::string> moments_of(const Parameter& parameter) const;
  c10::ScalarType type_of(const std::string& key, const Parameter& parameter) const;
  void check_blocks() const;
  bool has_main_weights() const;                              // on any rank
  c10::ScalarType main_type(const GradBuffer& buffer) const;  // main_weights_type() of its parameters

  // The step.
  void prepare();
  NormAndZeros norm_and_zeros(double grad_divisor) const;
  static StepResult result_of(const NormAndZeros& sums);
  RuleStep rule_step(const StepSettings& settings, double clip) const;
  void apply(const RuleStep& step);
  void update_average(std::span<Segment* const> segments, int64_t updates) const;
  void wait_for_state() const;  // until what is on the host may be read and changed

  // The state.
  std::vector<ShardRun> runs_of(const Segment& segment, int64_t begin, int64_t end) const;
  std::vector<std::pair<std::string, at::Tensor>> tensors_of(const Segment& segment) const;
  enum class Part { all, average };
  // Tensors to read, and those that are narrowed once they have been read in fp32.
  struct Reads;
  Reads reads_of(const StateSource& source, const GradBuffer* buffer, Part part) const;
  void read(const StateSource& source, bool share_reads, Part part);
  void read_with_others(const StateSource& source, Part part);

  DistributedDataParallel& ddp_;
  const OptimizerOptions options_;
  const std::unique_ptr<UpdateRule> rule_;
  const bool on_cpu_;
  const c10::ScalarType sum_type_;  // type of the sum of squares over ranks
  std::vector<Segment> segments_;
  std::vector<Segment*> on_device_;      // segments that the rule updates where they are
  std::vector<Segment*> averaged_;       // segments whose EMA follows after the update
  std::unique_ptr<Muon> muon_;           // updates matrices; null: none
  std::unique_ptr<Offload> offload_;     // updates segments on the host; null: none
  std::unique_ptr<StateStream> stream_;  // state on the host that the device updates; null: none
  int64_t steps_ = 0;
  bool is_swapped_ = false;  // the model has the EMA of its weights
};

}  // namespace concord
