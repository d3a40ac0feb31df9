// A loaded plugin: its identity, its capabilities, and how its tables are called.
//
// A Platform is a small value that refers to a plugin; plugins live until the process ends, so it never dangles.
// Threads: any thread, any time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "platform/cpp/status.hpp"
#include "platform/loader/arguments.h"
#include "platform/loader/host.h"
#include "platform/loader/registry.h"

namespace concord {

class Platform {
 public:
  explicit Platform(const loader::Plugin& plugin) : plugin_(&plugin) {}

  std::string_view name() const { return plugin_->tables.core.name; }        // "cpu"
  std::string_view version() const { return plugin_->tables.core.version; }  // human-readable version of the plugin
  std::string_view vendor() const { return plugin_->tables.core.vendor; }
  std::string_view label() const { return plugin_->tables.core.label; }  // the label of results obtained here
  const std::string& path() const { return plugin_->path; }
  loader::Version abi_version() const { return plugin_->version; }

  int32_t device_count() const {
    int32_t count = 0;
    call<&concord_device_table::count>(&count);
    return count;
  }

  // The value of a capability (names in platform/abi/core.h); 0 if it is not listed.
  int64_t capability(std::string_view capability_name) const {
    const concord_capability* found = find_capability(capability_name);
    return found != nullptr ? found->value : 0;
  }
  // Why it is what it is; empty if the plugin says nothing.
  std::string_view capability_note(std::string_view capability_name) const {
    const concord_capability* found = find_capability(capability_name);
    return found != nullptr && found->note != nullptr ? found->note : "";
  }
  std::span<const concord_capability> capabilities() const {
    return {core().capabilities, static_cast<size_t>(core().capability_count)};
  }

  // The tables for raw use. No function pointer in them is null.
  const loader::Tables& tables() const { return plugin_->tables; }
  const concord_core_table& core() const { return plugin_->tables.core; }

  // An extension whose slots platform/abi/slots.h lists, complete with stubs; nothing if the plugin has none.
  template <class Table>
  std::optional<Table> extension() const {
    return loader::negotiate_extension<Table>(find_table(loader::TableTraits<Table>::kName),
                                              loader::describe_plugin(plugin_->name, plugin_->version));
  }
  // Returns the plugin's table of that name; null if it has none. The caller checks version and size.
  const concord_table_header* find_table(const char* table_name) const { return plugin_->find_table(table_name); }

  // platform.call<&concord_stream_table::create>(device, priority, &stream): calls the slot and throws Error if it
  // fails. Costs no more than the bare call otherwise.
  template <auto Slot, class... Arguments>
  void call(Arguments... arguments) const {
    const auto& table = plugin_->tables.get<loader::TableOf<Slot>>();
    const concord_status status = (table.*Slot)(table.self, arguments...);
    if (status != CONCORD_STATUS_OK) [[unlikely]]
      throw_failure<Slot>(status, arguments...);
  }

  // Like call(), for destructors: a failure is logged.
  template <auto Slot, class... Arguments>
  void call_or_log(Arguments... arguments) const noexcept {
    const auto& table = plugin_->tables.get<loader::TableOf<Slot>>();
    const concord_status status = (table.*Slot)(table.self, arguments...);
    if (status != CONCORD_STATUS_OK) [[unlikely]]
      log_failure<Slot>(status, arguments...);
  }

  friend bool operator==(const Platform&, const Platform&) = default;

 private:
  const concord_capability* find_capability(std::string_view capability_name) const {
    for (const concord_capability& known : capabilities()) {
      if (known.name == capability_name) return &known;
    }
    return nullptr;
  }

  template <auto Slot, class... Arguments>
  [[gnu::cold, gnu::noinline]] Error make_error(concord_status status, Arguments... arguments) const {
    constexpr const loader::SlotInfo& slot = loader::Slot<Slot>::kInfo;
    std::string detail = loader::take_error_detail();
    return Error(status, Error::Call{plugin_->name, slot.full_name, loader::describe_arguments<Slot>(arguments...),
                                     std::move(detail)});
  }

  template <auto Slot, class... Arguments>
  [[noreturn, gnu::cold, gnu::noinline]] void throw_failure(concord_status status, Arguments... arguments) const {
    throw make_error<Slot>(status, arguments...);
  }

  template <auto Slot, class... Arguments>
  [[gnu::cold, gnu::noinline]] void log_failure(concord_status status, Arguments... arguments) const noexcept {
    try {
      loader::log(CONCORD_LOG_ERROR, name(), make_error<Slot>(status, arguments...).what());
    } catch (...) {  // out of memory while logging: the failure cannot be reported
    }
  }

  const loader::Plugin* plugin_;
};

// The platform of this process: the one that CONCORD_PLATFORM names, else the best that reports a device. Chosen at the
// first call, once; a failure throws Error with every place tried, and the next call tries again.
inline Platform current_platform() { return Platform(loader::current_plugin()); }

// A platform by its name, or by the path of its plugin (with a '/'). Several may live in one process.
inline Platform open_platform(const std::string& name_or_path) { return Platform(loader::open_plugin(name_or_path)); }

}  // namespace concord
