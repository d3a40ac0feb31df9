// Functions for the slots that a plugin does not have. They return UNIMPLEMENTED and say which plugin lacks what, so
// that host code never meets a null pointer.
//
// A stub gets the plugin's own |self|, which tells nothing to the host (two C plugins may both have null). So every
// stub exists kStubOwners times, and each plugin that needs stubs gets the set of its own number.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "platform/loader/slots.h"

namespace concord::loader {

inline constexpr size_t kStubOwners = 16;

// Gives |description| ("plugin 'cpu' (ABI 1.0)") a number below kStubOwners, the same each time. From the last number
// on they share it.
size_t register_stub_owner(const std::string& description);

// Sets the message and returns UNIMPLEMENTED.
concord_status report_missing_slot(size_t owner, const SlotInfo& slot) noexcept;

using AnyFunction = void (*)();
using StubSet = std::array<AnyFunction, kStubOwners>;

template <auto Member, size_t Owner, class Type = decltype(Member)>
struct Stub;

template <auto Member, size_t Owner, class Table, class... Arguments>
struct Stub<Member, Owner, concord_status (*Table::*)(void*, Arguments...)> {
  static concord_status call(void*, Arguments...) noexcept { return report_missing_slot(Owner, Slot<Member>::kInfo); }
};

template <auto Member, size_t... Owners>
StubSet make_stubs(std::index_sequence<Owners...>) {
  return {reinterpret_cast<AnyFunction>(&Stub<Member, Owners>::call)...};
}

template <auto Member>
const StubSet& stubs_of() {
  static const StubSet stubs = make_stubs<Member>(std::make_index_sequence<kStubOwners>());
  return stubs;
}

}  // namespace concord::loader
