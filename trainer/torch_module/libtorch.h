// Selects the libtorch that the program uses: that of CONCORD_TORCH (the folder torch of an installed wheel) if set,
// otherwise the one that libconcordtorch.so names. It names one in a checkout, and in an installation if Concord was
// built with a CONCORD_TORCH outside the checkout (toolchains/targets.cmake).
#pragma once

#include <string>

namespace concord {

// Loads libtorch from CONCORD_TORCH, globally, so that the module uses it; never unloads it. Returns an error if there
// is none, or if its version differs from the one this program was built with, since its types may differ. Empty if it
// was loaded, or CONCORD_TORCH is not set. Threads: same as torch_module().
std::string load_named_libtorch();

// Returns advice for the user if no libtorch is found.
std::string libtorch_advice();

}  // namespace concord
