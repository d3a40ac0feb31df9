// The part of mstx that the backend uses (libms_tools_ext.so): ranges and marks that msprof and MindStudio show.
// Written from the vendor's documentation.
#pragma once

#include <cstdint>

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::abi {

using mstxRangeId = uint64_t;  // 0: no range was opened

namespace fn {
// A null stream: on the host only.
using mstxMarkA = void(const char* message, aclrtStream);
using mstxRangeStartA = mstxRangeId(const char* message, aclrtStream);
using mstxRangeEnd = void(mstxRangeId);
}  // namespace fn

}  // namespace concord::ascend::abi
