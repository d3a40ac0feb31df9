// The author kit: turns C++ classes into the C tables of a plugin. Header-only; needs nothing but platform/abi.
//
// A backend writes one class a table. Its methods have the slot's name and arguments, without |self|. They report
// failure by throwing sdk::Failure (or anything else: the fence turns it into INTERNAL). A slot whose last argument is
// a single out_* pointer may be written as a method that returns the value. A method that is not there leaves its slot
// null, and the host fills it with UNIMPLEMENTED.
//
// Example at file scope:
//   class Streams {
//    public:
//     concord_stream create(int32_t device, int32_t priority);      // returns what the slot gives by out_stream
//     void destroy(concord_stream stream);
//     // ...
//   };
//   class MyPlugin : public concord::sdk::Plugin {
//    public:
//     MyPlugin() {
//       add(concord::sdk::new_table<concord_core_table>(nullptr));  // with the plugin's name and capabilities
//       add(concord::sdk::stream_table(&streams_));
//       // ...
//     }
//    private:
//     Streams streams_;
//   };
//   CONCORD_PLUGIN(MyPlugin)
//
// backends/null is the smallest complete sample.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "platform/abi/concord.h"

namespace concord::sdk {

// A failure that will be returned through the ABI: the status the caller will see and the message that explains it.
class Failure : public std::exception {
 public:
  Failure(concord_status status, std::string detail) : status_(status), detail_(std::move(detail)) {}
  const char* what() const noexcept override { return detail_.c_str(); }
  concord_status status() const noexcept { return status_; }

 private:
  concord_status status_;
  std::string detail_;
};

// printf's formatting, because a plugin should not need a formatting library.
[[gnu::format(printf, 1, 2)]] inline std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string result(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(result.data(), result.size() + 1, format, again);
  va_end(again);
  return result;
}

[[noreturn]] inline void fail(concord_status status, std::string detail) { throw Failure(status, std::move(detail)); }

[[noreturn]] inline void invalid(std::string detail) { fail(CONCORD_STATUS_INVALID_ARGUMENT, std::move(detail)); }

// The host that opened this plugin; one a shared library. Set by CONCORD_PLUGIN before the plugin's constructor runs.
inline const concord_host*& host_slot() {
  static const concord_host* host = nullptr;
  return host;
}

inline void set_error_detail(const char* detail) noexcept {
  const concord_host* host = host_slot();
  if (host != nullptr && host->set_error_detail != nullptr) host->set_error_detail(host->self, detail);
}

inline void log(concord_log_level level, const std::string& line) noexcept {
  const concord_host* host = host_slot();
  if (host != nullptr && host->log != nullptr) host->log(host->self, level, line.c_str());
}

// A setting by its dotted name ("cpu.devices"); null if it is not set.
inline const char* config(const char* name) noexcept {
  const concord_host* host = host_slot();
  return host != nullptr && host->config != nullptr ? host->config(host->self, name) : nullptr;
}

// Runs |body| and turns whatever it throws into a status and a sentence. No exception leaves it.
template <class Body>
concord_status fence(Body&& body) noexcept {
  try {
    body();
    return CONCORD_STATUS_OK;
  } catch (const Failure& failure) {
    set_error_detail(failure.what());
    return failure.status();
  } catch (const std::bad_alloc&) {
    set_error_detail("the host is out of memory");
    return CONCORD_STATUS_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_error_detail(error.what());
    return CONCORD_STATUS_INTERNAL;
  } catch (...) {
    set_error_detail("the plugin threw something that is not an std::exception");
    return CONCORD_STATUS_INTERNAL;
  }
}

// Slot<&Class::method>::call is the C function for that method.
template <auto Method>
struct Slot;

template <class Class, class... Arguments, void (Class::*Method)(Arguments...)>
struct Slot<Method> {
  static concord_status call(void* self, Arguments... arguments) noexcept {
    return fence([&] { (static_cast<Class*>(self)->*Method)(arguments...); });
  }
};

template <class Class, class Result, class... Arguments, Result (Class::*Method)(Arguments...)>
  requires(!std::is_void_v<Result>)
struct Slot<Method> {
  static concord_status call(void* self, Arguments... arguments, Result* out_result) noexcept {
    return fence([&] {
      if (out_result == nullptr) invalid("the pointer for the result is null");
      *out_result = Result{};
      *out_result = (static_cast<Class*>(self)->*Method)(arguments...);
    });
  }
};

template <class Table>
Table new_table(void* self) {
  Table table{};
  table.header = {sizeof(Table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR};
  table.self = self;
  return table;
}

// Fills |slot| from the method of the same name, if the class has one.
#define CONCORD_SDK_SLOT(slot) \
  if constexpr (requires { &Impl::slot; }) table.slot = &::concord::sdk::Slot<&Impl::slot>::call

template <class Impl>
concord_device_table device_table(Impl* impl) {
  auto table = new_table<concord_device_table>(impl);
  CONCORD_SDK_SLOT(count);
  CONCORD_SDK_SLOT(info);
  CONCORD_SDK_SLOT(set_current);
  CONCORD_SDK_SLOT(get_current);
  CONCORD_SDK_SLOT(synchronize);
  CONCORD_SDK_SLOT(can_access_peer);
  CONCORD_SDK_SLOT(enable_peer_access);
  return table;
}

template <class Impl>
concord_memory_table memory_table(Impl* impl) {
  auto table = new_table<concord_memory_table>(impl);
  CONCORD_SDK_SLOT(allocate);
  CONCORD_SDK_SLOT(release);
  CONCORD_SDK_SLOT(allocate_on_stream);
  CONCORD_SDK_SLOT(release_on_stream);
  CONCORD_SDK_SLOT(allocate_host);
  CONCORD_SDK_SLOT(release_host);
  CONCORD_SDK_SLOT(copy);
  CONCORD_SDK_SLOT(copy_on_stream);
  CONCORD_SDK_SLOT(copy_peer_on_stream);
  CONCORD_SDK_SLOT(fill_on_stream);
  CONCORD_SDK_SLOT(info);
  CONCORD_SDK_SLOT(describe_pointer);
  return table;
}

template <class Impl>
concord_stream_table stream_table(Impl* impl) {
  auto table = new_table<concord_stream_table>(impl);
  CONCORD_SDK_SLOT(create);
  CONCORD_SDK_SLOT(destroy);
  CONCORD_SDK_SLOT(synchronize);
  CONCORD_SDK_SLOT(query);
  CONCORD_SDK_SLOT(wait_event);
  CONCORD_SDK_SLOT(priority_range);
  CONCORD_SDK_SLOT(launch_host);
  return table;
}

template <class Impl>
concord_event_table event_table(Impl* impl) {
  auto table = new_table<concord_event_table>(impl);
  CONCORD_SDK_SLOT(create);
  CONCORD_SDK_SLOT(destroy);
  CONCORD_SDK_SLOT(record);
  CONCORD_SDK_SLOT(query);
  CONCORD_SDK_SLOT(synchronize);
  CONCORD_SDK_SLOT(elapsed);
  return table;
}

template <class Impl>
concord_comm_table comm_table(Impl* impl) {
  auto table = new_table<concord_comm_table>(impl);
  CONCORD_SDK_SLOT(unique_id_size);
  CONCORD_SDK_SLOT(unique_id_create);
  CONCORD_SDK_SLOT(init);
  CONCORD_SDK_SLOT(split);
  CONCORD_SDK_SLOT(destroy);
  CONCORD_SDK_SLOT(abort);
  CONCORD_SDK_SLOT(async_error);
  CONCORD_SDK_SLOT(rank);
  CONCORD_SDK_SLOT(size);
  CONCORD_SDK_SLOT(supports);
  CONCORD_SDK_SLOT(all_reduce);
  CONCORD_SDK_SLOT(reduce);
  CONCORD_SDK_SLOT(broadcast);
  CONCORD_SDK_SLOT(all_gather);
  CONCORD_SDK_SLOT(reduce_scatter);
  CONCORD_SDK_SLOT(all_to_all);
  CONCORD_SDK_SLOT(all_to_all_v);
  CONCORD_SDK_SLOT(barrier);
  CONCORD_SDK_SLOT(batch_p2p);
  return table;
}

template <class Impl>
concord_rng_table rng_table(Impl* impl) {
  auto table = new_table<concord_rng_table>(impl);
  CONCORD_SDK_SLOT(fill);
  return table;
}

#undef CONCORD_SDK_SLOT

// Copies |value| into a struct whose size the caller stated in its first field: what fits, no more.
template <class Info>
void write_sized(Info value, Info* out_info) {
  if (out_info == nullptr) invalid("the pointer for the result is null");
  const uint32_t size = out_info->struct_size;
  if (size < sizeof(uint32_t)) invalid(text("struct_size is %u; set it to the size of the struct", size));
  value.struct_size = size;
  std::memcpy(static_cast<void*>(out_info), &value, size < sizeof(Info) ? size : sizeof(Info));
}

// Copies a string into a fixed field, truncated if it does not fit, always null-terminated.
template <size_t N>
void write_string(char (&field)[N], const std::string& value) {
  std::snprintf(field, N, "%s", value.c_str());
}

// The root object of a plugin. A backend derives from it and adds its tables in the constructor. It lives forever.
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
  void add(const concord_core_table& table) { add(CONCORD_CORE_TABLE, table); }
  void add(const concord_device_table& table) { add(CONCORD_DEVICE_TABLE, table); }
  void add(const concord_memory_table& table) { add(CONCORD_MEMORY_TABLE, table); }
  void add(const concord_stream_table& table) { add(CONCORD_STREAM_TABLE, table); }
  void add(const concord_event_table& table) { add(CONCORD_EVENT_TABLE, table); }
  void add(const concord_comm_table& table) { add(CONCORD_COMM_TABLE, table); }
  void add(const concord_rng_table& table) { add(CONCORD_RNG_TABLE, table); }

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

// Body of concord_plugin_open: constructs |Type| once, forever.
template <class Type>
concord_status open_plugin(const concord_host* host, const concord_plugin** out_plugin) noexcept {
  host_slot() = host;
  return fence([&] {
    if (host == nullptr || out_plugin == nullptr)
      invalid("concord_plugin_open needs a host and a place for its result");
    *out_plugin = nullptr;
    static Type* plugin = new Type();  // never destroyed: streams and threads may outlive main
    *out_plugin = plugin->root();
  });
}

#define CONCORD_PLUGIN(Type)                                                            \
  extern "C" __attribute__((visibility("default"))) concord_status concord_plugin_open( \
      const concord_host* host, const concord_plugin** out_plugin) {                    \
    return ::concord::sdk::open_plugin<Type>(host, out_plugin);                         \
  }

}  // namespace concord::sdk
