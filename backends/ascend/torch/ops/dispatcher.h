// Operators of torch_npu, found by their names and called by the names of their arguments, so that neither torch_npu's
// headers nor one version of its schemas are needed; and the references of Concord's own operators.
#pragma once

#include <torch/library.h>

#include <map>
#include <optional>
#include <string>

namespace concord::ascend::torch_side {

using torch::jit::Stack;
using Arguments = std::map<std::string, c10::IValue>;

// An operator of torch_npu; nothing if this torch_npu has none of that name.
std::optional<c10::OperatorHandle> find(const char* name);

// Arguments that are not named get the schema's defaults. Throws std::runtime_error for those that the schema lacks.
Stack call(const c10::OperatorHandle& op, Arguments arguments);

// The reference of an operator of Concord, which runs on any device.
Stack reference(const char* name, Stack stack);

}  // namespace concord::ascend::torch_side
