// The tables and their slots as C++ sees them: what platform/abi/slots.h lists, with types, names and offsets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "platform/abi/concord.h"
#include "platform/abi/slots.h"

namespace concord::loader {

struct SlotInfo {
  const char* table;
  const char* name;
  const char* full_name;  // "stream.create"
  const char* arguments;  // names after self, commas between
  bool required;
  uint16_t since;  // minor version
  size_t offset;   // in the table
};

// Slot<&concord_stream_table::create>: an empty value that represents one slot in overloads and visitors.
template <auto Member>
struct Slot;

// Traits of a pointer to a slot: its table and the arguments after self.
template <class Member>
struct SlotType;

template <class TableType, class... Arguments>
struct SlotType<concord_status (*TableType::*)(void*, Arguments...)> {
  using Table = TableType;
  static constexpr size_t kArity = sizeof...(Arguments);
};

template <auto Member>
using TableOf = typename SlotType<decltype(Member)>::Table;

// TableTraits<concord_stream_table>: its name and a walk over its slots, in order: visit(Slot<...>{}).
template <class Table>
struct TableTraits;

constexpr size_t count_names(std::string_view names) {
  size_t count = names.empty() ? 0 : 1;
  for (const char letter : names) count += letter == ',' ? 1 : 0;
  return count;
}

#define CONCORD_DEFINE_SLOT(table_, slot_, required_, since_, arguments_)                                  \
  template <>                                                                                              \
  struct Slot<&concord_##table_##_table::slot_> {                                                          \
    static constexpr auto kMember = &concord_##table_##_table::slot_;                                      \
    static constexpr SlotInfo kInfo{#table_,                                                               \
                                    #slot_,                                                                \
                                    #table_ "." #slot_,                                                    \
                                    arguments_,                                                            \
                                    (required_) != 0,                                                      \
                                    since_,                                                                \
                                    offsetof(concord_##table_##_table, slot_)};                            \
    static_assert(count_names(arguments_) == SlotType<decltype(&concord_##table_##_table::slot_)>::kArity, \
                  "platform/abi/slots.h names every argument of " #table_ "." #slot_);                     \
  };
#define CONCORD_VISIT_SLOT(table_, slot_, required_, since_, arguments_) \
  visit(Slot<&concord_##table_##_table::slot_>{});
#define CONCORD_COUNT_SLOT(table_, slot_, required_, since_, arguments_) +1
#define CONCORD_DEFINE_TABLE(table_, LIST)                                                                             \
  LIST(CONCORD_DEFINE_SLOT)                                                                                            \
  template <>                                                                                                          \
  struct TableTraits<concord_##table_##_table> {                                                                       \
    static constexpr const char* kName = #table_;                                                                      \
    static constexpr size_t kSlots = 0 LIST(CONCORD_COUNT_SLOT);                                                       \
    template <class Visitor>                                                                                           \
    static constexpr void for_each_slot(Visitor&& visit) {                                                             \
      LIST(CONCORD_VISIT_SLOT)                                                                                         \
    }                                                                                                                  \
  };                                                                                                                   \
  static_assert(sizeof(concord_##table_##_table) == sizeof(concord_table_header) + sizeof(void*) +                     \
                                                        TableTraits<concord_##table_##_table>::kSlots * sizeof(void*), \
                "platform/abi/slots.h lists every slot of " #table_);

CONCORD_DEFINE_TABLE(device, CONCORD_DEVICE_SLOTS)
CONCORD_DEFINE_TABLE(memory, CONCORD_MEMORY_SLOTS)
CONCORD_DEFINE_TABLE(stream, CONCORD_STREAM_SLOTS)
CONCORD_DEFINE_TABLE(event, CONCORD_EVENT_SLOTS)
CONCORD_DEFINE_TABLE(comm, CONCORD_COMM_SLOTS)
CONCORD_DEFINE_TABLE(rng, CONCORD_RNG_SLOTS)
CONCORD_DEFINE_TABLE(graph, CONCORD_GRAPH_SLOTS)
CONCORD_DEFINE_TABLE(profiler, CONCORD_PROFILER_SLOTS)
CONCORD_DEFINE_TABLE(activity, CONCORD_ACTIVITY_SLOTS)

#undef CONCORD_DEFINE_TABLE
#undef CONCORD_COUNT_SLOT
#undef CONCORD_VISIT_SLOT
#undef CONCORD_DEFINE_SLOT

// Every table that a plugin must have, as the host uses them: complete, no function pointer null.
struct Tables {
  concord_core_table core;
  concord_device_table device;
  concord_memory_table memory;
  concord_stream_table stream;
  concord_event_table event;
  concord_comm_table comm;
  concord_rng_table rng;

  template <class Table>
  const Table& get() const {
    if constexpr (std::is_same_v<Table, concord_core_table>) return core;
    if constexpr (std::is_same_v<Table, concord_device_table>) return device;
    if constexpr (std::is_same_v<Table, concord_memory_table>) return memory;
    if constexpr (std::is_same_v<Table, concord_stream_table>) return stream;
    if constexpr (std::is_same_v<Table, concord_event_table>) return event;
    if constexpr (std::is_same_v<Table, concord_comm_table>) return comm;
    if constexpr (std::is_same_v<Table, concord_rng_table>) return rng;
  }
  template <class Table>
  Table& get() {
    return const_cast<Table&>(static_cast<const Tables*>(this)->get<Table>());
  }

  // visit(table) for each table that has slots.
  template <class Visitor>
  void for_each(Visitor&& visit) {
    visit(device);
    visit(memory);
    visit(stream);
    visit(event);
    visit(comm);
    visit(rng);
  }
};

}  // namespace concord::loader
