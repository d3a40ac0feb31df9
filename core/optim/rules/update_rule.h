// An update rule applies one optimizer step (AdamW, Lion or SGD) to a list of segments, with vectorised loops on the
// host or with operators on a device.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/optim/optimizer_options.h"
#include "core/optim/segment.h"

namespace concord {

// The scalars of one step, before a segment's multipliers.
struct RuleStep {
  double lr = 0;
  double weight_decay = 0;
  double grad_scale = 1;
  int64_t t = 1;  // counts from 1
  double decoupled_lr = 0;
  std::optional<at::Tensor> factor = {};  // replaces grad_scale, on the device; see core/ops/optimizer/adamw.h

  double lr_of(const GroupMultipliers& group) const { return (group.decoupled ? decoupled_lr : lr) * group.lr; }
  double weight_decay_of(const GroupMultipliers& group) const { return weight_decay * group.weight_decay; }
};

// Computes average = decay average + (1 - decay) values. Not libtorch's lerp, whose bits depend on the position of an
// element.
inline void mix(const at::Tensor& average, const at::Tensor& values, double decay) {
  average.mul_(decay).add_(values.mul(1 - decay));
}

// Threads: one at a time.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Returns the names of a segment's moments, as in OptimizerState::Entry::key.
  virtual std::vector<std::string> moments() const = 0;
  // Updates tensors in the host's memory, with several threads.
  virtual void step_on_host(std::span<Segment* const> segments, const RuleStep& step) const = 0;
  // Updates tensors of any device, on the current stream.
  virtual void step_on_device(std::span<Segment* const> segments, const RuleStep& step) const = 0;
  // Whether step_on_device applies RuleStep::factor on |device|.
  virtual bool takes_factor(c10::Device /*device*/) const { return false; }
  // Whether step_on_device updates state of all types on |device|, not only in fp32.
  virtual bool takes_narrow_state(c10::Device /*device*/) const { return false; }
};

// Returns the rule of |options|; for muon AdamW, which updates all parameters that are not matrices. Throws ConfigError
// for invalid numbers.
std::unique_ptr<UpdateRule> make_rule(const OptimizerOptions& options);

}  // namespace concord
