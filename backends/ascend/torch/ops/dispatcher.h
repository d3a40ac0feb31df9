// Calls operators of torch_npu by name, with named arguments, so that the code depends neither on torch_npu's headers
// nor on one version of its schemas; and finds the references of Concord's own operators.
#pragma once

#include <torch/library.h>

#include <map>
#include <optional>
#include <string>

namespace concord::ascend::torch_side {

using torch::jit::Stack;
using Arguments = std::map<std::string, c10::IValue>;

// Returns an operator of torch_npu, one of vendor_operators.h ("npu_swiglu"). If this torch_npu lacks it, returns
// nullopt and warns once per operator.
std::optional<c10::OperatorHandle> find(const char* name);

// Returns whether |op| has an argument of that name, which older ones may lack.
bool takes(const c10::OperatorHandle& op, const char* argument);

// Calls |op|. Missing arguments get the schema's defaults; throws std::runtime_error for names that the schema lacks.
Stack call(const c10::OperatorHandle& op, Arguments arguments);

// Runs the reference of an operator of Concord, which works on any device.
Stack reference(const char* name, Stack stack);

}  // namespace concord::ascend::torch_side
