// Finds libconcordtorch.so (table.h) like a plugin: in the folders of CONCORD_PLUGIN_PATH, next to the program, in the
// installation. Skips those of a different build, so that CONCORD_PLUGIN_PATH can name the plugins of another build.
// Which libtorch it uses: libtorch.h. Threads: the main thread, while there is no other.
#pragma once

#include "trainer/torch_module/table.h"

namespace concord {

// Loads the module and with it libtorch, once, and never unloads it. The process then exits without running destructors
// of objects constructed before this call returned. Throws Error (UNAVAILABLE) with every file tried, why it cannot be
// used, and what to do.
const TorchModule& torch_module();

// Like torch_module(), throws if no file can be used, but loads nothing: for a process that only starts others.
void check_torch_module();

}  // namespace concord
