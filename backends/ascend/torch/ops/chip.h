// The chip that the process uses, as ACL names it.
#pragma once

#include <string_view>

namespace concord::ascend::torch_side {

// Returns whether the chip's name ("Ascend910B2") begins with |family| ("Ascend950"). Needs a device.
bool chip_is(std::string_view family);

}  // namespace concord::ascend::torch_side
