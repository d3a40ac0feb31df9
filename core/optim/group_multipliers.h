// Factors of the learning rate and the weight decay for groups of parameters.
#pragma once

#include <functional>

#include "core/parallel/parameter.h"

namespace concord {

struct GroupMultipliers {
  double lr = 1;
  double weight_decay = 1;
  bool decoupled = false;  // |lr| multiplies StepSettings::decoupled_lr instead of lr

  auto operator<=>(const GroupMultipliers&) const = default;
};

// Returns the multipliers of a parameter's group.
using Multipliers = std::function<GroupMultipliers(const Parameter&)>;
// Disables weight decay for parameters with one dimension and for biases.
GroupMultipliers default_multipliers(const Parameter& parameter);

}  // namespace concord
