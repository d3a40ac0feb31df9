// The author kit: turns C++ classes into a plugin. Header-only; needs only platform/abi.
//
// A backend is a struct. Its members are the objects behind the tables: devices, memory, streams, events, communicators
// and rng, and optionally graphs, profiler and activities. Each object has the methods that it implements (tables.hpp);
// what it lacks, and whole objects that the backend lacks, return UNIMPLEMENTED. describe() returns what the plugin is.
//
// Example at file scope:
//   struct Streams {
//     concord_stream create(int32_t device, int32_t priority);  // returns the slot's out_stream
//     void destroy(concord_stream stream);
//     // ...
//   };
//   struct Acme {
//     Streams streams;
//     concord::sdk::Description describe() const { return {.name = "acme", .vendor = "Acme"}; }
//   };
//   CONCORD_PLUGIN(Acme)
//
// backends/null is the smallest complete sample.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "platform/sdk/tables.hpp"

namespace concord::sdk {

// The contents of a plugin's core table (platform/abi/core.h). Strings that are not set are null in the table.
struct Description {
  const char* name = nullptr;  // value of CONCORD_PLATFORM
  const char* vendor = nullptr;
  std::string version = "0.1.0";
  std::string label = {};  // label of results; empty: the name
  int32_t priority = 0;    // negative: never chosen automatically
  std::vector<concord_capability> capabilities = {};
  const char* torch_device_type = "cpu";
  const char* torch_device_name = nullptr;
  std::vector<const char*> torch_libraries = {};
  const char* visible_devices_variable = nullptr;
};

// The root object of a plugin: tables by name. Lives until the process ends.
class Plugin {
 public:
  Plugin() : root_(new_table<concord_plugin>(this)) { root_.find_table = &find_table; }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  virtual ~Plugin() = default;

  const concord_plugin* root() const { return &root_; }

 protected:
  template <class Table>
  void add(const char* name, const Table& table) {
    tables_.emplace_back(name, std::make_shared<Table>(table));
  }

 private:
  static const concord_table_header* find_table(void* self, const char* name) {
    if (name == nullptr) return nullptr;
    for (const auto& [known, table] : static_cast<Plugin*>(self)->tables_) {
      if (known == name) return static_cast<const concord_table_header*>(table.get());
    }
    return nullptr;
  }

  concord_plugin root_;
  std::vector<std::pair<std::string, std::shared_ptr<const void>>> tables_;
};

// The plugin of a backend, see above. If the backend has has_graphs(), that decides whether the graph table exists.
template <class Backend>
class StandardPlugin : public Plugin {
 public:
  template <class... Arguments>
  explicit StandardPlugin(Arguments&&... arguments) : backend_{std::forward<Arguments>(arguments)...} {
    add(CONCORD_CORE_TABLE, core_table());
    add_required();
    add_extensions();
  }

 protected:
  Backend backend_;

 private:
  struct Nothing {};  // an object without methods

  concord_core_table core_table() {
    if (description_.label.empty()) description_.label = description_.name;
    const bool has_libraries = !description_.torch_libraries.empty();
    description_.torch_libraries.push_back(nullptr);
    auto table = new_table<concord_core_table>(this);
    table.name = description_.name;
    table.version = description_.version.c_str();
    table.vendor = description_.vendor;
    table.label = description_.label.c_str();
    table.priority = description_.priority;
    table.capabilities = description_.capabilities.data();
    table.capability_count = static_cast<int64_t>(description_.capabilities.size());
    table.torch_device_type = description_.torch_device_type;
    table.torch_device_name = description_.torch_device_name;
    table.torch_libraries = has_libraries ? description_.torch_libraries.data() : nullptr;
    table.visible_devices_variable = description_.visible_devices_variable;
    return table;
  }

#define CONCORD_SDK_ADD(name_, table_, member_) \
  if constexpr (requires { backend_.member_; }) \
    add(name_, table_(&backend_.member_));      \
  else                                          \
    add(name_, table_<Nothing>(nullptr))
  void add_required() {
    CONCORD_SDK_ADD(CONCORD_DEVICE_TABLE, device_table, devices);
    CONCORD_SDK_ADD(CONCORD_MEMORY_TABLE, memory_table, memory);
    CONCORD_SDK_ADD(CONCORD_STREAM_TABLE, stream_table, streams);
    CONCORD_SDK_ADD(CONCORD_EVENT_TABLE, event_table, events);
    CONCORD_SDK_ADD(CONCORD_COMM_TABLE, comm_table, communicators);
    CONCORD_SDK_ADD(CONCORD_RNG_TABLE, rng_table, rng);
  }
#undef CONCORD_SDK_ADD

  void add_extensions() {
    if constexpr (requires { backend_.graphs; }) {
      if (has_graphs()) add(CONCORD_GRAPH_TABLE, graph_table(&backend_.graphs));
    }
    if constexpr (requires { backend_.profiler; }) add(CONCORD_PROFILER_TABLE, profiler_table(&backend_.profiler));
    if constexpr (requires { backend_.activities; }) add(CONCORD_ACTIVITY_TABLE, activity_table(&backend_.activities));
  }

  bool has_graphs() const {
    if constexpr (requires { backend_.has_graphs(); }) return backend_.has_graphs();
    return true;
  }

  Description description_ = backend_.describe();
};

template <class Type>
struct PluginOf {
  using type = StandardPlugin<Type>;
};
template <std::derived_from<Plugin> Type>
struct PluginOf<Type> {
  using type = Type;
};

// Body of concord_plugin_open: constructs the plugin of |Type|, a backend or a Plugin, on the first call.
template <class Type>
concord_status open_plugin(const concord_host* host, const concord_plugin** out_plugin) noexcept {
  host_slot() = host;
  return fence([&] {
    if (host == nullptr || out_plugin == nullptr)
      invalid("concord_plugin_open needs a host and a place for its result");
    *out_plugin = nullptr;
    static auto* plugin = new typename PluginOf<Type>::type();  // never destroyed: streams and threads may outlive main
    *out_plugin = plugin->root();
  });
}

#define CONCORD_PLUGIN(Type)                                                            \
  extern "C" __attribute__((visibility("default"))) concord_status concord_plugin_open( \
      const concord_host* host, const concord_plugin** out_plugin) {                    \
    return ::concord::sdk::open_plugin<Type>(host, out_plugin);                         \
  }

}  // namespace concord::sdk
