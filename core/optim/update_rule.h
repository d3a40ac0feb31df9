// What one step does to a list of segments: AdamW or SGD, on the host's loops or with libtorch's operators on a device.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/optim/segment.h"

namespace concord {

// The numbers of one step before a segment's multipliers.
struct RuleStep {
  double lr = 0;
  double weight_decay = 0;
  double grad_scale = 1;
  int64_t t = 1;  // counts from 1
};

// Threads: one at a time.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // The names of the moments that a segment has, as in OptimizerState::Entry::key.
  virtual std::vector<std::string> moments() const = 0;
  // For tensors in the host's memory; parallel inside.
  virtual void step_on_host(std::span<Segment* const> segments, const RuleStep& step) const = 0;
  // For tensors of any device, on the current stream.
  virtual void step_on_device(std::span<Segment* const> segments, const RuleStep& step) const = 0;
};

// Throws ConfigError for a name other than "adam", "adamw" and "sgd", and for invalid numbers.
std::unique_ptr<UpdateRule> make_rule(const OptimizerOptions& options);

}  // namespace concord
