#include "platform/conformance/plugin.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "platform/bridge/bridge.h"
#include "platform/loader/host.h"

namespace concord::conformance {
namespace {

const concord_capability* find(const concord_core_table& core, const std::string& name) {
  for (int64_t i = 0; i < core.capability_count; ++i) {
    if (core.capabilities[i].name != nullptr && name == core.capabilities[i].name) return &core.capabilities[i];
  }
  return nullptr;
}

// The bridge over the plugin of |rank| in a list such as "cpu,ascend". Ranks share the plugin's devices in turn.
Plugin open_bridge(const std::string& list, int rank) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    names.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  const Platform platform = open_platform(names[static_cast<size_t>(rank) % names.size()]);
  const int32_t count = platform.device_count();
  if (count == 0) throw Error(CONCORD_STATUS_UNAVAILABLE, "no device: " + std::string(platform.name()));
  const loader::Plugin& bridge = bridge::open_bridge({platform, static_cast<int32_t>(rank) % count});
  return {bridge.tables, bridge.root, bridge.path};
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

Plugin open_plugin(const std::string& platform, int rank) {
  constexpr std::string_view kBridge = "bridge:";
  if (platform.starts_with(kBridge)) return open_bridge(platform.substr(kBridge.size()), rank);
  const loader::Plugin& opened = platform.empty() ? loader::current_plugin() : loader::open_plugin(platform);
  return {opened.tables, opened.root, opened.path};
}

std::string take_detail() { return loader::take_error_detail(); }

}  // namespace concord::conformance
