// A tiny host for unit tests of a plugin: opens the shared library and hands out its tables as they are: no loader, no
// stubs, no layers in between. A program opens one plugin once.
//
// Example:
//   sdk::TestHost::set_config("cpu.devices", "2");
//   const sdk::TestHost host("/path/to/libconcord_cpu.so");
//   concord_stream stream = nullptr;
//   host.stream().create(host.stream().self, 0, 0, &stream);
#pragma once

#include <dlfcn.h>

#include <map>
#include <stdexcept>
#include <string>

#include "platform/abi/concord.h"

namespace concord::sdk {

class TestHost {
 public:
  // Throws std::runtime_error if the library or its entry is missing. status() reports a failing open.
  explicit TestHost(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    open_ = reinterpret_cast<concord_plugin_open_function>(dlsym(library, CONCORD_PLUGIN_ENTRY));
    if (open_ == nullptr) throw std::runtime_error(dlerror());
    reopen();
  }

  // Calls the entry once more; for tests of opens that fail.
  concord_status reopen() { return status_ = open_(host(), &plugin_); }
  concord_status status() const { return status_; }
  const concord_plugin* plugin() const { return plugin_; }

  const concord_core_table& core() const { return table<concord_core_table>(CONCORD_CORE_TABLE); }
  const concord_device_table& device() const { return table<concord_device_table>(CONCORD_DEVICE_TABLE); }
  const concord_memory_table& memory() const { return table<concord_memory_table>(CONCORD_MEMORY_TABLE); }
  const concord_stream_table& stream() const { return table<concord_stream_table>(CONCORD_STREAM_TABLE); }
  const concord_event_table& event() const { return table<concord_event_table>(CONCORD_EVENT_TABLE); }
  const concord_comm_table& comm() const { return table<concord_comm_table>(CONCORD_COMM_TABLE); }
  const concord_rng_table& rng() const { return table<concord_rng_table>(CONCORD_RNG_TABLE); }

  // The sentence that the calling thread's last failure left.
  static std::string& detail() {
    thread_local std::string text;
    return text;
  }

  // Settings that the plugin reads. Not while a plugin is being opened on another thread.
  static void set_config(const std::string& name, const std::string& value) { settings()[name] = value; }
  static void clear_config() { settings().clear(); }

 private:
  static std::map<std::string, std::string>& settings() {
    static std::map<std::string, std::string> map;
    return map;
  }

  static const concord_host* host() {
    static const concord_host value = {
        {sizeof(concord_host), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
        nullptr,
        [](void*, const char* text) { detail() = text != nullptr ? text : ""; },
        [](void*, concord_log_level, const char*) {},
        [](void*, const char* name) -> const char* {
          const auto found = settings().find(name);
          return found != settings().end() ? found->second.c_str() : nullptr;
        },
    };
    return &value;
  }

  template <class Table>
  const Table& table(const char* name) const {
    if (plugin_ == nullptr) throw std::runtime_error("the plugin did not open: " + detail());
    const concord_table_header* found = plugin_->find_table(plugin_->self, name);
    if (found == nullptr) throw std::runtime_error(std::string("the plugin has no table ") + name);
    return *reinterpret_cast<const Table*>(found);
  }

  concord_plugin_open_function open_ = nullptr;
  const concord_plugin* plugin_ = nullptr;
  concord_status status_ = CONCORD_STATUS_OK;
};

}  // namespace concord::sdk
