// The libtorch that the program uses: the one of CONCORD_TORCH (the folder torch of an installed wheel) if that is set,
// else the one that libconcordtorch.so names. In a checkout it names one; in an installation where Concord was built
// with a CONCORD_TORCH outside of the checkout (toolchains/targets.cmake).
#pragma once

#include <string>

namespace concord {

// Loads libtorch from CONCORD_TORCH, globally, so that the module finds it there and not elsewhere; it stays. Returns
// why it cannot: there is none, or one of another version than this program was built with, whose types may differ.
// Empty if it was loaded, or CONCORD_TORCH is not set. Threads: as torch_module.
std::string load_named_libtorch();

// What to do if no libtorch is found.
std::string libtorch_advice();

}  // namespace concord
