// The plugin under test, as the loader opened it.
#pragma once

#include <cstdint>
#include <string>

#include "platform/loader/registry.h"

namespace concord::conformance {

struct Plugin {
  loader::Tables tables;                 // negotiated: complete, no function pointer is null
  const concord_plugin* root = nullptr;  // as the plugin itself gave it
  std::string path;

  int64_t capability(const char* name) const;   // 0 if it is not listed
  std::string why_not(const char* name) const;  // the note of a capability, as a phrase
};

// Opens |platform| (a name, a path, or empty for the loader's own choice) for rank |rank|. "bridge:cpu,ascend" is the
// bridge (platform/bridge/bridge.h) between ranks that take turns with these plugins. Throws std::exception with the
// loader's message.
Plugin open_plugin(const std::string& platform, int rank);

// The message of the calling thread's last failure, and clears it.
std::string take_detail();

}  // namespace concord::conformance
