// The null plugin: every required slot exists and returns UNIMPLEMENTED; no device. It is the template for a new
// backend (README.md) and the smallest plugin that the loader accepts.
#include "platform/sdk/plugin.hpp"

#include "comm.h"
#include "device.h"
#include "event.h"
#include "memory.h"
#include "rng.h"
#include "stream.h"

namespace concord::null {
namespace {

// What the backend can do, as data. Each name in platform/abi/core.h; a value of 0 needs its reason in the note. What
// is listed with another value is what conformance then holds the backend to.
constexpr concord_capability kCapabilities[] = {
    {CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 0, "this backend has no memory"},
    {CONCORD_CAP_STREAM_NULL, 0, "this backend has no streams"},
};

concord_core_table core_table() {
  auto core = sdk::new_table<concord_core_table>(nullptr);
  core.name = "null";
  core.version = "0.1.0";
  core.vendor = "none";
  core.label = "null";
  core.priority = -1;  // never chosen automatically
  core.capabilities = kCapabilities;
  core.capability_count = std::size(kCapabilities);
  core.torch_device_type = "cpu";
  return core;
}

class NullPlugin : public sdk::Plugin {
 public:
  NullPlugin() {
    add(core_table());
    add(sdk::device_table(&devices_));
    add(sdk::memory_table(&memory_));
    add(sdk::stream_table(&streams_));
    add(sdk::event_table(&events_));
    add(sdk::comm_table(&communicators_));
    add(sdk::rng_table(&rng_));
  }

 private:
  Devices devices_;
  Memory memory_;
  Streams streams_;
  Events events_;
  Communicators communicators_;
  Rng rng_;
};

}  // namespace
}  // namespace concord::null

CONCORD_PLUGIN(concord::null::NullPlugin)
