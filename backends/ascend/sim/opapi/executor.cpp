#include "backends/ascend/sim/opapi/executor.h"

#include <c10/core/InferenceMode.h>

#include "backends/ascend/sim/opapi/objects.h"
#include "backends/ascend/sim/opapi/product_flops.h"
#include "backends/ascend/sim/runtime/sim.h"

namespace concord::ascend::sim {
namespace {

// What an operator that fails while it runs is to the stream. The hardware's word for most of it; a failing operator
// leaves its outputs as they were.
constexpr int kStreamCode = abi::kRtAicoreException;

// On the stream's thread.
int run(const aclOpExecutor& call) {
  try {
    const c10::InferenceMode below_autograd;
    const ProductFlops products;
    call.run();
    concord_sim_count_operator(call.name, call.bytes_read, call.bytes_written, products.count());
    return 0;
  } catch (const std::exception& error) {
    return refuse(call.name, kStreamCode, error.what());
  }
}

std::string& operator_names() {
  static auto* const names = new std::string;
  return *names;
}

}  // namespace

Registered::Registered(const char* name) { operator_names() += std::string(name) + "\n"; }

int refuse(const char* name, int code, const std::string& text) {
  concord_sim_set_message((std::string(name) + ": " + text).c_str());
  return code;
}

int hand_out(std::unique_ptr<aclOpExecutor> executor, uint64_t* out_workspace_size, aclOpExecutor** out_executor) {
  if (out_workspace_size == nullptr || out_executor == nullptr) {
    throw OperatorError(kAclnnParamNull, "the pointer for the workspace size or the executor is null");
  }
  remember_object(executor.get(), Kind::kExecutor);
  *out_workspace_size = 0;
  *out_executor = executor.release();
  return 0;
}

int launch_executor(const char* name, aclOpExecutor* executor, abi::aclrtStream stream) {
  if (!forget_object(executor, Kind::kExecutor)) {
    return refuse(name, executor == nullptr ? kAclnnParamNull : kAclnnParamInvalid,
                  "given " + describe_object(executor) + ", which is not an unused executor");
  }
  std::unique_ptr<aclOpExecutor> owned(executor);
  if (std::string(name) != executor->name) {
    return refuse(name, kAclnnParamInvalid, std::string("given the executor of ") + executor->name);
  }
  return queue_call(std::move(owned), stream);
}

int queue_call(std::unique_ptr<aclOpExecutor> call, abi::aclrtStream stream) {
  const char* const name = call->name;
  return launch(stream, name, [kept = std::shared_ptr<aclOpExecutor>(std::move(call))] { return run(*kept); });
}

// ----------------------------------------------------------------------------------------- what the library exports

extern "C" {

// The operators that are implemented, one per line; the others of names.txt only fail. For tests.
CONCORD_SIM_EXPORT const char* concord_sim_operators(void) { return operator_names().c_str(); }

// Destroys an executor that was not used.
CONCORD_SIM_EXPORT int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  if (!forget_object(executor, Kind::kExecutor)) {
    return refuse("aclDestroyAclOpExecutor", kAclnnParamInvalid, "given " + describe_object(executor));
  }
  delete executor;
  return 0;
}

}  // extern "C"

}  // namespace concord::ascend::sim
