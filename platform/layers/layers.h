// Layers wrap the tables of a plugin in other tables that check, record or disturb each call. They are
// switched on by CONCORD_LAYERS=validate,trace,fault; the first is the outermost. If it is not set nothing is wrapped.
#pragma once

#include "platform/loader/slots.h"

namespace concord::layers {

// Throws Error (INVALID_ARGUMENT) if CONCORD_LAYERS, or a setting of a layer that it names, is invalid.
void check_settings();

// |tables| wrapped in the layers of CONCORD_LAYERS. What it makes lives until the process ends.
loader::Tables wrap(const loader::Tables& tables);

}  // namespace concord::layers
