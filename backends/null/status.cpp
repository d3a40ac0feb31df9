#include "status.h"

#include "platform/sdk/plugin.hpp"

namespace concord::null {

void unimplemented(const char* slot) {
  sdk::fail(CONCORD_STATUS_UNIMPLEMENTED, sdk::text("this backend does not implement %s", slot));
}

}  // namespace concord::null
