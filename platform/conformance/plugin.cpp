#include "platform/conformance/plugin.h"

#include "platform/loader/host.h"

namespace concord::conformance {
namespace {

const concord_capability* find(const concord_core_table& core, const std::string& name) {
  for (int64_t i = 0; i < core.capability_count; ++i) {
    if (core.capabilities[i].name != nullptr && name == core.capabilities[i].name) return &core.capabilities[i];
  }
  return nullptr;
}

}  // namespace

int64_t Plugin::capability(const char* name) const {
  const concord_capability* known = find(tables.core, name);
  return known != nullptr ? known->value : 0;
}

std::string Plugin::why_not(const char* name) const {
  const concord_capability* known = find(tables.core, name);
  return known != nullptr && known->note != nullptr ? known->note : "the plugin does not list it";
}

Plugin open_plugin(const std::string& platform) {
  const loader::Plugin& opened = platform.empty() ? loader::current_plugin() : loader::open_plugin(platform);
  return {opened.tables, opened.root, opened.path};
}

std::string take_detail() { return loader::take_error_detail(); }

}  // namespace concord::conformance
