// Finds libconcordtorch.so (table.h) where plugins are found: in the folders of CONCORD_PLUGIN_PATH, then next to the
// program, then in the installation. One of another build is skipped, so that CONCORD_PLUGIN_PATH can name the
// plugins of another build. Which libtorch it uses: libtorch.h. Threads: the main thread, while there is no other.
#pragma once

#include "trainer/torch_module/table.h"

namespace concord {

// Loads the module and with it libtorch, once; it stays, and the process ends without the destructors of what was
// constructed before this call returned. Throws Error (UNAVAILABLE) with every file tried, why it
// cannot be used, and what to do about it.
const TorchModule& torch_module();

// Throws the same if no file can be used, but loads nothing: for a process that only starts those that will.
void check_torch_module();

}  // namespace concord
