#include "backends/ascend/torch/ops/chip.h"

#include <dlfcn.h>

#include <string>

namespace concord::ascend::torch_side {

bool chip_is(std::string_view family) {
  static const std::string name = [] {
    // libtorch_npu links the runtime.
    void* const runtime = dlopen("libascendcl.so", RTLD_NOW | RTLD_NOLOAD);
    const auto get =
        runtime == nullptr ? nullptr : reinterpret_cast<const char* (*)()>(dlsym(runtime, "aclrtGetSocName"));
    const char* const given = get == nullptr ? nullptr : get();
    return std::string(given == nullptr ? "" : given);
  }();
  return std::string_view(name).starts_with(family);
}

}  // namespace concord::ascend::torch_side
