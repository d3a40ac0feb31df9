// From what a plugin hands out to what the host uses: versions and sizes are compared, required slots are looked for,
// missing ones get stubs. Nothing that a plugin says is believed before it was checked.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/loader/slots.h"
#include "platform/loader/stubs.h"

namespace concord::loader {

struct Version {
  uint16_t major;
  uint16_t minor;
};
inline constexpr Version kHostVersion{CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR};

std::string to_string(Version version);  // "1.0"

// One table as this host knows it.
struct SlotDescription {
  SlotInfo info;
  const StubSet* stubs;
};
struct TableDescription {
  const char* name;
  size_t size;
  std::vector<SlotDescription> slots;
};

template <class Table>
const TableDescription& describe_table() {
  static const TableDescription description = [] {
    TableDescription result{TableTraits<Table>::kName, sizeof(Table), {}};
    TableTraits<Table>::for_each_slot(
        [&]<auto Member>(Slot<Member>) { result.slots.push_back({Slot<Member>::kInfo, &stubs_of<Member>()}); });
    return result;
  }();
  return description;
}

// "plugin 'cpu' (ABI 1.0)"
std::string describe_plugin(const std::string& name, Version version);

// The owner of stubs, for messages: the number is assigned when the first one is needed.
class StubOwner {
 public:
  explicit StubOwner(std::string description) : description_(std::move(description)) {}
  size_t number();

 private:
  std::string description_;
  std::optional<size_t> number_;
};

// Fills |out_table| (of |known|.size bytes) from the plugin's |given| table. Throws Error (ABI_MISMATCH).
void negotiate_table(const TableDescription& known, const concord_table_header* given, Version host, StubOwner& owner,
                     void* out_table);

struct Negotiated {
  Version version;  // the plugin's own
  Tables tables;
};

// All required tables of a plugin. Throws Error (ABI_MISMATCH).
Negotiated negotiate(const concord_plugin* plugin);

// The extension |Table| of the plugin that |description| describes, complete as a required table is; nothing if the
// plugin has none.
template <class Table>
std::optional<Table> negotiate_extension(const concord_table_header* given, const std::string& description) {
  if (given == nullptr) return std::nullopt;
  Table table{};
  StubOwner owner(description);
  negotiate_table(describe_table<Table>(), given, kHostVersion, owner, &table);
  return table;
}

}  // namespace concord::loader
