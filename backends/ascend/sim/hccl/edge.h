// Wraps the body of every exported function of HCCL: exceptions become HCCL's code, and a message for
// aclGetRecentErrMsg.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "backends/ascend/sim/hccl/rank.h"
#include "backends/ascend/sim/runtime/acl/acl.h"
#include "platform/sdk/plugin.hpp"

namespace concord::ascend::sim {

template <class Body>
abi::HcclResult hccl_call(const char* function, Body&& body) noexcept {
  const auto report = [&](abi::HcclResult code, const char* what) {
    concord_sim_set_message(sdk::text("[sim-npu] %s: %s (%u)", function, what, static_cast<unsigned>(code)).c_str());
    return code;
  };
  try {
    body();
    return abi::kHcclSuccess;
  } catch (const HcclError& error) {
    return report(error.code(), error.what());
  } catch (const std::exception& error) {
    return report(abi::kHcclInternal, error.what());
  }
}

inline void require(const void* pointer, const char* name) {
  if (pointer == nullptr) refuse(abi::kHcclPtr, sdk::text("the argument '%s' is null", name));
}

// A communicator in use by one call; destroying it meanwhile is an error.
class InUse {
 public:
  // Throws HCCL_E_PTR if |comm| is null, HCCL_E_PARA if it is invalid.
  explicit InUse(abi::HcclComm comm);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

  Rank* operator->() const { return rank_.get(); }
  const std::shared_ptr<Rank>& shared() const { return rank_; }

 private:
  abi::HcclComm comm_;
  std::shared_ptr<Rank> rank_;
};

}  // namespace concord::ascend::sim
