#include "backends/cpu/status.h"

#include <cerrno>
#include <new>
#include <system_error>

namespace concord::cpu {

void fail_system(const char* doing, int error) {
  const bool exhausted = error == ENOMEM || error == EAGAIN || error == ENOSPC || error == EMFILE || error == ENFILE;
  sdk::fail(exhausted ? CONCORD_STATUS_OUT_OF_MEMORY : CONCORD_STATUS_VENDOR_ERROR,
            sdk::text("%s failed: %s (errno %d)", doing, std::system_category().message(error).c_str(), error));
}

sdk::Failure current_failure() {
  try {
    throw;
  } catch (const sdk::Failure& failure) {
    return failure;
  } catch (const std::bad_alloc&) {
    return {CONCORD_STATUS_OUT_OF_MEMORY, "the host is out of memory"};
  } catch (const std::exception& error) {
    return {CONCORD_STATUS_INTERNAL, error.what()};
  } catch (...) {
    return {CONCORD_STATUS_INTERNAL, "queued work threw something that is not an std::exception"};
  }
}

}  // namespace concord::cpu
