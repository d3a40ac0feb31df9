// How this backend reports errors of the system: the call, the error's number and its message.
#pragma once

#include "platform/sdk/failure.hpp"

namespace concord::cpu {

// Throws: OUT_OF_MEMORY if the system is short of memory, threads or the like, otherwise VENDOR_ERROR.
[[noreturn]] void fail_system(const char* doing, int error);

}  // namespace concord::cpu
