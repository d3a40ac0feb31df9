#include "platform/loader/negotiate.h"

#include <algorithm>
#include <cstring>

#include "platform/loader/error.h"
#include "platform/loader/probe.h"
#include "platform/loader/text.h"

namespace concord::loader {
namespace {

constexpr size_t kAbsurdSize = 64 * 1024;
constexpr int64_t kMaxCapabilities = 4096;

[[noreturn]] void mismatch(const std::string& sentence) { throw Error(CONCORD_STATUS_ABI_MISMATCH, sentence); }

// |what| is "table 'stream'". |least| and |most| are the sizes that the plugin's version of it can have.
void check_size(const std::string& what, const concord_table_header& header, size_t least, size_t most) {
  const Version version{header.major, header.minor};
  if (header.struct_size > kAbsurdSize) {
    mismatch(
        cat(what, ": struct_size is ", header.struct_size, " bytes, which is implausible (at most ", kAbsurdSize, ")"));
  }
  if (header.struct_size < least) {
    mismatch(cat(what, ": struct_size is ", header.struct_size, " bytes, but what version ", to_string(version),
                 " requires takes ", least));
  }
  if (header.struct_size > most) {
    mismatch(cat(what, ": struct_size is ", header.struct_size, " bytes, but version ", to_string(version),
                 " of it has ", most));
  }
}

concord_table_header read_header(const std::string& what, const void* given, Version host) {
  concord_table_header header{};
  if (!read_memory(given, &header, sizeof header)) mismatch(cat(what, ": the plugin's pointer to it cannot be read"));
  if (header.struct_size < sizeof header) {
    mismatch(cat(what, ": struct_size is ", header.struct_size, " bytes, less than the header of a table (",
                 sizeof header, ")"));
  }
  if (header.major != host.major) {
    mismatch(cat(what, ": the plugin has ABI version ", to_string({header.major, header.minor}),
                 ", this program version ", to_string(host), "; the major versions must be equal: rebuild the ",
                 header.major > host.major ? "program" : "plugin"));
  }
  return header;
}

void copy_known_part(const std::string& what, const void* given, size_t given_size, void* out_table, size_t size) {
  std::memset(out_table, 0, size);
  if (!read_memory(given, out_table, std::min(given_size, size))) {
    mismatch(cat(what, ": struct_size is ", given_size, " bytes, but not all of them can be read"));
  }
}

size_t end_of(const SlotInfo& slot) { return slot.offset + sizeof(AnyFunction); }

bool required_by(const SlotInfo& slot, const concord_table_header& header) {
  return slot.required && slot.since <= header.minor;
}

void check_table_size(const std::string& what, const TableDescription& known, const concord_table_header& header,
                      Version host) {
  size_t least = sizeof(concord_table_header) + sizeof(void*);
  size_t most = least;
  for (const SlotDescription& slot : known.slots) {
    if (required_by(slot.info, header)) least = std::max(least, end_of(slot.info));
    if (slot.info.since <= header.minor) most = std::max(most, end_of(slot.info));
  }
  check_size(what, header, least, header.minor > host.minor ? kAbsurdSize : most);
}

void check_slot(const std::string& what, const SlotDescription& slot, const concord_table_header& header,
                StubOwner& owner, char* field) {
  AnyFunction function = nullptr;
  std::memcpy(&function, field, sizeof function);
  if (function == nullptr) {
    if (required_by(slot.info, header)) {
      mismatch(cat(what, ": slot '", slot.info.name, "' is null, but version ",
                   to_string({header.major, slot.info.since}), " requires it"));
    }
    function = (*slot.stubs)[owner.number()];
    std::memcpy(field, &function, sizeof function);
  } else if (!is_code(reinterpret_cast<const void*>(function))) {
    mismatch(cat(what, ": slot '", slot.info.name, "' does not point to a function; is struct_size (",
                 header.struct_size, ") right?"));
  }
}

std::string read_required(const char* field, const char* text) {
  if (text == nullptr) mismatch(cat("table 'core': ", field, " is null, but required"));
  auto value = read_string(text);
  if (!value) mismatch(cat("table 'core': ", field, " does not point to a string"));
  return *value;
}

void check_optional(const char* field, const char* text) {
  if (text != nullptr) read_required(field, text);
}

void check_name(const std::string& name) {
  const bool good = !name.empty() && std::all_of(name.begin(), name.end(), [](char letter) {
    return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '_' || letter == '-';
  });
  if (!good)
    mismatch(cat("table 'core': name is '", name, "'; it must consist of lower-case letters, digits, '_' and '-'"));
}

void check_capabilities(const concord_core_table& core) {
  if (core.capability_count < 0 || core.capability_count > kMaxCapabilities) {
    mismatch(cat("table 'core': capability_count is ", core.capability_count, "; it must be 0 to ", kMaxCapabilities));
  }
  if (core.capability_count > 0 && core.capabilities == nullptr) {
    mismatch(cat("table 'core': capability_count is ", core.capability_count, ", but capabilities is null"));
  }
  for (int64_t i = 0; i < core.capability_count; ++i) {
    concord_capability capability{};
    if (!read_memory(&core.capabilities[i], &capability, sizeof capability)) {
      mismatch(cat("table 'core': capability ", i, " of ", core.capability_count, " cannot be read"));
    }
    read_required("the name of a capability", capability.name);
    check_optional("the note of a capability", capability.note);
  }
}

void check_torch_libraries(const concord_core_table& core) {
  constexpr int kMaxLibraries = 256;
  for (int i = 0; core.torch_libraries != nullptr; ++i) {
    const char* library = nullptr;
    if (i == kMaxLibraries || !read_memory(&core.torch_libraries[i], &library, sizeof library)) {
      mismatch("table 'core': torch_libraries is not a list that ends with null");
    }
    if (library == nullptr) return;
    read_required("an entry of torch_libraries", library);
  }
}

concord_core_table read_core(const concord_table_header* given, Version host) {
  const std::string what = "table 'core'";
  const concord_table_header header = read_header(what, given, host);
  const size_t least = offsetof(concord_core_table, torch_device_type) + sizeof(const char*);
  check_size(what, header, least, header.minor > host.minor ? kAbsurdSize : sizeof(concord_core_table));
  concord_core_table core{};
  copy_known_part(what, given, header.struct_size, &core, sizeof core);
  check_name(read_required("name", core.name));
  read_required("version", core.version);
  read_required("vendor", core.vendor);
  read_required("label", core.label);
  read_required("torch_device_type", core.torch_device_type);
  check_optional("torch_device_name", core.torch_device_name);
  check_optional("visible_devices_variable", core.visible_devices_variable);
  check_capabilities(core);
  check_torch_libraries(core);
  return core;
}

concord_plugin read_root(const concord_plugin* given) {
  const std::string what = "concord_plugin";
  const concord_table_header header = read_header(what, given, kHostVersion);
  check_size(what, header, sizeof(concord_plugin),
             header.minor > kHostVersion.minor ? kAbsurdSize : sizeof(concord_plugin));
  concord_plugin root{};
  copy_known_part(what, given, header.struct_size, &root, sizeof root);
  if (root.find_table == nullptr) mismatch("concord_plugin: find_table is null, but version 1.0 requires it");
  if (!is_code(reinterpret_cast<const void*>(root.find_table))) {
    mismatch("concord_plugin: find_table does not point to a function");
  }
  return root;
}

const concord_table_header* find_required(const concord_plugin& root, const char* name) {
  const concord_table_header* table = root.find_table(root.self, name);
  if (table == nullptr) mismatch(cat("table '", name, "' is missing, but required"));
  return table;
}

}  // namespace

std::string to_string(Version version) { return cat(version.major, ".", version.minor); }

std::string describe_plugin(const std::string& name, Version version) {
  return cat("plugin '", name, "' (ABI ", to_string(version), ")");
}

size_t StubOwner::number() {
  if (!number_) number_ = register_stub_owner(description_);
  return *number_;
}

void negotiate_table(const TableDescription& known, const concord_table_header* given, Version host, StubOwner& owner,
                     void* out_table) {
  const std::string what = cat("table '", known.name, "'");
  const concord_table_header header = read_header(what, given, host);
  check_table_size(what, known, header, host);
  copy_known_part(what, given, header.struct_size, out_table, known.size);
  for (const SlotDescription& slot : known.slots) {
    check_slot(what, slot, header, owner, static_cast<char*>(out_table) + slot.info.offset);
  }
}

Negotiated negotiate(const concord_plugin* plugin) {
  const concord_plugin root = read_root(plugin);
  Negotiated result{{root.header.major, root.header.minor}, {}};
  result.tables.core = read_core(find_required(root, CONCORD_CORE_TABLE), kHostVersion);
  StubOwner owner(describe_plugin(result.tables.core.name, result.version));
  result.tables.for_each([&]<class Table>(Table& table) {
    const TableDescription& known = describe_table<Table>();
    negotiate_table(known, find_required(root, known.name), kHostVersion, owner, &table);
  });
  return result;
}

}  // namespace concord::loader
