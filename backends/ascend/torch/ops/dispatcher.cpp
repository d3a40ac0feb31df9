#include "backends/ascend/torch/ops/dispatcher.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "backends/ascend/torch/vendor_operators.h"

namespace concord::ascend::torch_side {

std::optional<c10::OperatorHandle> find(const char* name) {
  if (std::ranges::find(kVendorOperators, std::string(name)) == std::end(kVendorOperators)) {
    throw std::logic_error(std::string(name) + " is not in vendor_operators.h");
  }
  const auto found = c10::Dispatcher::singleton().findSchema({std::string("npu::") + name, ""});
  static std::set<std::string> missing;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!found && missing.insert(name).second) {
    TORCH_WARN("this torch_npu has no ", name, ": Concord's reference runs instead, which is slower");
  }
  return found;
}

bool takes(const c10::OperatorHandle& op, const char* argument) {
  return std::ranges::any_of(op.schema().arguments(),
                             [&](const c10::Argument& each) { return each.name() == argument; });
}

Stack call(const c10::OperatorHandle& op, Arguments arguments) {
  Stack stack;
  for (const c10::Argument& each : op.schema().arguments()) {
    auto given = arguments.extract(each.name());
    if (given.empty() && !each.default_value()) {
      throw std::runtime_error("this torch_npu's " + op.schema().name() +
                               " needs an argument that Concord does not know: " + each.name());
    }
    stack.push_back(given.empty() ? *each.default_value() : std::move(given.mapped()));
  }
  if (!arguments.empty()) {
    throw std::runtime_error("this torch_npu's " + op.schema().name() + " has no argument " + arguments.begin()->first);
  }
  op.callBoxed(stack);
  return stack;
}

Stack reference(const char* name, Stack stack) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
  return stack;
}

}  // namespace concord::ascend::torch_side
