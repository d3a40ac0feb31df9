/* The entry of a library with the defect that CMake names. */
#include "platform/abi/concord.h"

concord_status DEFECT(const concord_host* host, const concord_plugin** out_plugin);
__attribute__((visibility("default"))) concord_status concord_plugin_open(const concord_host* host,
                                                                          const concord_plugin** out_plugin);

/* -fexceptions lets what the defect throws pass through here on its way to the host. */
concord_status concord_plugin_open(const concord_host* host, const concord_plugin** out_plugin) {
  return DEFECT(host, out_plugin);
}
