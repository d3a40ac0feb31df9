#include "platform/loader/stubs.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/loader/host.h"
#include "platform/loader/text.h"

namespace concord::loader {
namespace {

struct Owners {
  std::mutex mutex;
  std::vector<std::string> descriptions CONCORD_GUARDED_BY(mutex);
};

Owners& owners() {
  static auto* all = new Owners();  // never destroyed: plugins live forever
  return *all;
}

}  // namespace

size_t register_stub_owner(const std::string& description) {
  Owners& all = owners();
  const std::lock_guard lock(all.mutex);
  const auto known = std::find(all.descriptions.begin(), all.descriptions.end(), description);
  if (known != all.descriptions.end()) return static_cast<size_t>(known - all.descriptions.begin());
  if (all.descriptions.size() < kStubOwners) {
    all.descriptions.push_back(description);
  } else {
    all.descriptions.back() += cat(" or ", description);
  }
  return all.descriptions.size() - 1;
}

concord_status report_missing_slot(size_t owner, const SlotInfo& slot) noexcept {
  try {
    Owners& all = owners();
    const std::lock_guard lock(all.mutex);
    set_error_detail(cat(all.descriptions.at(owner), " does not implement ", slot.full_name));
  } catch (...) {
    set_error_detail("this plugin does not implement the call");
  }
  return CONCORD_STATUS_UNIMPLEMENTED;
}

}  // namespace concord::loader
