#include "backends/cpu/status.h"

#include <cerrno>
#include <system_error>

namespace concord::cpu {

void fail_system(const char* doing, int error) {
  const bool exhausted = error == ENOMEM || error == EAGAIN || error == ENOSPC || error == EMFILE || error == ENFILE;
  sdk::fail(exhausted ? CONCORD_STATUS_OUT_OF_MEMORY : CONCORD_STATUS_VENDOR_ERROR,
            sdk::text("%s failed: %s (errno %d)", doing, std::system_category().message(error).c_str(), error));
}

}  // namespace concord::cpu
