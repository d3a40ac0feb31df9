// Checks an operator's arguments against CANN's documentation: combinations of types, numbers of dimensions, shapes and
// ranges of attributes, for the Atlas A2 series (910B). A call that violates it is refused when it is prepared,
// since hardware may refuse it, too, or compute something else. Operators without an entry are not checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/ascend/sim/opapi/objects.h"

namespace concord::ascend::sim {

// The arguments of a call, by kind, each in the order of the operator's parameters.
struct CallArguments {
  std::vector<const TensorView*> tensors;             // null: optional and missing
  std::vector<std::vector<const TensorView*>> lists;  // lists of tensors, without optional ones
  std::vector<int64_t> integers;                      // without booleans and types
  std::vector<double> numbers;
  std::vector<std::string> texts;
};

// Returns what is wrong with a call of |name| ("aclnnRmsNorm"), or "".
std::string documented_complaint(const std::string& name, const CallArguments& call);

// Returns the names of the operators that are checked.
std::vector<std::string> documented_operators();

}  // namespace concord::ascend::sim
