// The null plugin: the smallest plugin that the loader accepts, and the template for a new backend (README.md). It has
// no device, and every slot except device.count returns UNIMPLEMENTED.
#include "platform/sdk/plugin.hpp"

namespace concord::null {
namespace {

struct Devices {
  int32_t count() { return 0; }  // no hardware: never chosen automatically
};

struct Null {
  Devices devices;

  sdk::Description describe() const {
    return {
        .name = "null",
        .vendor = "none",
        .priority = -1,  // never chosen automatically
        // What the backend can do. Each name is in platform/abi/core.h; a value of 0 needs its reason in the note.
        // Conformance tests everything that is listed with a different value.
        .capabilities = {{CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 0, "this backend has no memory"},
                         {CONCORD_CAP_STREAM_NULL, 0, "this backend has no streams"}},
    };
  }
};

}  // namespace
}  // namespace concord::null

CONCORD_PLUGIN(concord::null::Null)
