// The C tables of a plugin, filled from the methods of C++ classes. Header-only.
//
// A class has a method for each slot that it implements, with the slot's name and arguments, without |self|. A method
// reports failure by throwing sdk::Failure (or anything else: the fence converts it to INTERNAL). A slot whose last
// argument is a single out_* pointer may be a method that returns the value. A required slot without a method returns
// UNIMPLEMENTED; an optional one stays null, and the host returns UNIMPLEMENTED for it.
#pragma once

#include <cstring>
#include <type_traits>

#include "platform/abi/slots.h"
#include "platform/sdk/failure.hpp"

namespace concord::sdk {

template <class Method>
struct MethodTraits;

template <class Class, class Result, class... Arguments>
struct MethodTraits<Result (Class::*)(Arguments...)> {
  using Owner = Class;
};

// Slot<&Class::method>::call is the C function for that method; |self| is an Impl, which may derive from Class.
template <auto Method, class Impl = typename MethodTraits<decltype(Method)>::Owner>
struct Slot;

template <class Class, class... Arguments, void (Class::*Method)(Arguments...), class Impl>
struct Slot<Method, Impl> {
  static concord_status call(void* self, Arguments... arguments) noexcept {
    return fence([&] { (static_cast<Impl*>(self)->*Method)(arguments...); });
  }
};

template <class Class, class Result, class... Arguments, Result (Class::*Method)(Arguments...), class Impl>
  requires(!std::is_void_v<Result>)
struct Slot<Method, Impl> {
  static concord_status call(void* self, Arguments... arguments, Result* out_result) noexcept {
    return fence([&] {
      if (out_result == nullptr) invalid("the pointer for the result is null");
      *out_result = Result{};
      *out_result = (static_cast<Impl*>(self)->*Method)(arguments...);
    });
  }
};

// The C function for a required slot without a method. Name::text() is its full name, like "stream.create".
template <class Name, class Type>
struct MissingSlot;

template <class Name, class Table, class... Arguments>
struct MissingSlot<Name, concord_status (*Table::*)(void*, Arguments...)> {
  static concord_status call(void*, Arguments... arguments) noexcept {
    (clear(arguments), ...);
    return fence([] { fail(CONCORD_STATUS_UNIMPLEMENTED, text("this backend does not implement %s", Name::text())); });
  }

 private:
  // Results are pointers to numbers and to handles.
  template <class Argument>
  static void clear(Argument argument) {
    using Result = std::remove_pointer_t<Argument>;
    if constexpr (std::is_pointer_v<Argument> && std::is_scalar_v<Result> && !std::is_const_v<Result>) {
      if (argument != nullptr) *argument = Result{};
    }
  }
};

template <class Table>
Table new_table(void* self) {
  Table table{};
  table.header = {sizeof(Table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR};
  table.self = self;
  return table;
}

// device_table(&devices) and so on: the table of an object.
#define CONCORD_SDK_SLOT(table_, slot_, required_, since_, arguments_)                  \
  if constexpr (requires { &Impl::slot_; }) {                                           \
    table.slot_ = &Slot<&Impl::slot_, Impl>::call;                                      \
  } else if constexpr ((required_) != 0) {                                              \
    struct Name {                                                                       \
      static const char* text() { return #table_ "." #slot_; }                          \
    };                                                                                  \
    table.slot_ = &MissingSlot<Name, decltype(&concord_##table_##_table::slot_)>::call; \
  }
#define CONCORD_SDK_TABLE(table_, LIST)                     \
  template <class Impl>                                     \
  concord_##table_##_table table_##_table(Impl* impl) {     \
    auto table = new_table<concord_##table_##_table>(impl); \
    LIST(CONCORD_SDK_SLOT)                                  \
    return table;                                           \
  }

CONCORD_SDK_TABLE(device, CONCORD_DEVICE_SLOTS)
CONCORD_SDK_TABLE(memory, CONCORD_MEMORY_SLOTS)
CONCORD_SDK_TABLE(stream, CONCORD_STREAM_SLOTS)
CONCORD_SDK_TABLE(event, CONCORD_EVENT_SLOTS)
CONCORD_SDK_TABLE(comm, CONCORD_COMM_SLOTS)
CONCORD_SDK_TABLE(rng, CONCORD_RNG_SLOTS)
CONCORD_SDK_TABLE(graph, CONCORD_GRAPH_SLOTS)
CONCORD_SDK_TABLE(profiler, CONCORD_PROFILER_SLOTS)
CONCORD_SDK_TABLE(activity, CONCORD_ACTIVITY_SLOTS)

#undef CONCORD_SDK_TABLE
#undef CONCORD_SDK_SLOT

// Copies |value| into a struct whose size the caller stated in its first field: only as many bytes as fit.
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

}  // namespace concord::sdk
