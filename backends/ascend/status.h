// Translates result codes of ACL and HCCL to those of the ABI, and describes failures.
//
// Every message has the vendor's call, the code's number and name, and the vendor's own message. An unknown code is
// VENDOR_ERROR, never success.
#pragma once

#include <string>

#include "backends/ascend/cann.h"
#include "platform/sdk/plugin.hpp"

namespace concord::ascend {

concord_status status_of(abi::aclError error);
concord_status status_of(abi::HcclResult result);

// Returns "aclrtMalloc failed with 207001, ACL_ERROR_RT_MEMORY_ALLOCATION: <text of aclGetRecentErrMsg>". This clears
// ACL's per-thread message.
std::string describe(const Acl& acl, abi::aclError error, const char* call);
std::string describe(const Hccl& hccl, abi::HcclResult result, const char* call);

// Throws with describe(error), to which |context| is appended.
[[noreturn]] void fail_acl(const Acl& acl, abi::aclError error, const char* call, const std::string& context = {});

inline void check_acl(const Acl& acl, abi::aclError error, const char* call) {
  if (error != abi::kAclSuccess) [[unlikely]]
    fail_acl(acl, error, call);
}

void check_hccl(const Hccl& hccl, abi::HcclResult result, const char* call);

}  // namespace concord::ascend
