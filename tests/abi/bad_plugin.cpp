// Plugins with one thing wrong in how they are opened: one library for each DEFECT and SPOILED below. This file is
// compiled once; bad_plugin_entry.c turns one of its functions into the entry of a library.
#include <sys/mman.h>

#include <stdexcept>

#include "tests/abi/sample_plugin.hpp"

namespace {

using concord_opened = const concord_plugin**;

// The tables of a good plugin, for the caller to corrupt.
struct Tables {
  concord_plugin root;
  concord_core_table core;
  concord_device_table device;
  concord_memory_table memory;
  concord_stream_table stream;
  concord_event_table event;
  concord_comm_table comm;
  concord_rng_table rng;
  const char* missing = "";  // the name of a table that is not found
  const concord_table_header* extra = nullptr;
  const char* extra_name = "";
};

Tables& tables() {
  static Tables all;
  return all;
}

const concord_table_header* find_table(void*, const char* name) {
  Tables& all = tables();
  const std::string wanted = name;
  if (wanted == all.missing) return nullptr;
  if (wanted == all.extra_name) return all.extra;
  if (wanted == "core") return &all.core.header;
  if (wanted == "device") return &all.device.header;
  if (wanted == "memory") return &all.memory.header;
  if (wanted == "stream") return &all.stream.header;
  if (wanted == "event") return &all.event.header;
  if (wanted == "comm") return &all.comm.header;
  if (wanted == "rng") return &all.rng.header;
  return nullptr;
}

// Opens a good plugin whose tables the caller then corrupts through tables().
concord_status open_good(const concord_host* host, concord_opened out_plugin) {
  const concord_plugin* good = nullptr;
  const concord_status status = concord::sdk::open_plugin<concord::sample::Plugin>(host, &good);
  if (status != CONCORD_STATUS_OK) return status;
  const auto take = [&]<class Table>(const char* name, Table& table) {
    table = *reinterpret_cast<const Table*>(good->find_table(good->self, name));
  };
  Tables& all = tables();
  all.root = *good;
  all.root.find_table = &find_table;
  take("core", all.core);
  take("device", all.device);
  take("memory", all.memory);
  take("stream", all.stream);
  take("event", all.event);
  take("comm", all.comm);
  take("rng", all.rng);
  *out_plugin = &all.root;
  return CONCORD_STATUS_OK;
}

}  // namespace

// Each defines a function with the arguments of concord_plugin_open.
#define DEFECT(name)                                                   \
  extern "C" concord_status name(const concord_host*, concord_opened); \
  concord_status name([[maybe_unused]] const concord_host* host, [[maybe_unused]] concord_opened out)
#define SPOILED(name, ...)                                                                        \
  DEFECT(name) {                                                                                  \
    if (concord_status status = open_good(host, out); status != CONCORD_STATUS_OK) return status; \
    Tables& all = tables();                                                                       \
    __VA_ARGS__;                                                                                  \
    return CONCORD_STATUS_OK;                                                                     \
  }

DEFECT(open_throws) { throw std::runtime_error("the vendor's library is in a bad mood"); }
DEFECT(open_throws_a_number) { throw 42; }
DEFECT(open_fails) {
  host->set_error_detail(host->self, "the driver is 3.1, at least 4.0 is needed");
  return CONCORD_STATUS_UNAVAILABLE;
}
DEFECT(open_fails_in_silence) { return CONCORD_STATUS_VENDOR_ERROR; }
DEFECT(open_returns_an_unknown_code) { return 4711; }
DEFECT(open_gives_null) {
  *out = nullptr;
  return CONCORD_STATUS_OK;
}
DEFECT(open_gives_a_wild_pointer) {
  *out = reinterpret_cast<const concord_plugin*>(uintptr_t{0x10});
  return CONCORD_STATUS_OK;
}

SPOILED(root_of_a_newer_major, all.root.header.major = CONCORD_ABI_MAJOR + 1)
SPOILED(root_too_small, all.root.header.struct_size = 16)
SPOILED(find_table_is_null, all.root.find_table = nullptr)
SPOILED(
    find_table_throws, all.root.find_table = [](void*, const char*) -> const concord_table_header* {
      throw std::runtime_error("no tables today");
    })
SPOILED(
    find_table_gives_a_wild_pointer, all.root.find_table = [](void*, const char*) {
      return reinterpret_cast<const concord_table_header*>(uintptr_t{0x20});
    })

SPOILED(table_of_a_newer_major, all.stream.header.major = CONCORD_ABI_MAJOR + 1)
SPOILED(table_of_an_older_major, all.stream.header.major = 0)
SPOILED(table_missing, all.missing = "comm")
SPOILED(size_below_the_head, all.stream.header.struct_size = 4)
SPOILED(size_absurd, all.stream.header.struct_size = 1u << 30)
SPOILED(size_without_required_slots, all.stream.header.struct_size = 24)
SPOILED(size_beyond_its_version, all.stream.header.struct_size += 8)
SPOILED(slot_null, all.comm.all_gather = nullptr)
// The struct is smaller than its size field: the data after it is not a function.
SPOILED(size_that_covers_foreign_data, {
  static int number = 42;
  const int* no_function = &number;
  std::memcpy(&all.event.query, &no_function, sizeof no_function);
})
// The struct ends at the end of its page, and struct_size extends beyond it.
SPOILED(size_that_covers_no_memory, {
  char* pages = static_cast<char*>(mmap(nullptr, 131072, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(pages + 65536, 65536);
  auto* table = pages + 65536 - 32;
  std::memcpy(table, &all.event, 32);
  const concord_table_header lying{sizeof(concord_event_table), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR};
  std::memcpy(table, &lying, sizeof lying);
  all.extra_name = "event";
  all.extra = reinterpret_cast<const concord_table_header*>(table);
})

SPOILED(name_null, all.core.name = nullptr)
SPOILED(name_with_spaces, all.core.name = "My Device")
SPOILED(label_null, all.core.label = nullptr)
SPOILED(version_wild, all.core.version = reinterpret_cast<const char*>(uintptr_t{0x30}))
SPOILED(capabilities_null, all.core.capabilities = nullptr)
SPOILED(capabilities_negative, all.core.capability_count = -1)
SPOILED(capability_without_a_name, {
  static const concord_capability kNameless[] = {{nullptr, 1, nullptr}};
  all.core.capabilities = kNameless;
  all.core.capability_count = 1;
})

// Valid: a plugin of a later minor version, with a larger table and one that this host does not know.
SPOILED(fine_newer_minor, {
  static struct {
    concord_rng_table known;
    concord_status (*shuffle)(void*, int64_t);
  } bigger{all.rng, [](void*, int64_t) { return CONCORD_STATUS_OK; }};
  static struct {
    concord_table_header header;
    void* self;
    int32_t (*answer)(void*);
  } hologram{{24, CONCORD_ABI_MAJOR, 7}, nullptr, [](void*) { return 42; }};
  bigger.known.header = {sizeof bigger, CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR + 1};
  all.root.header.minor = CONCORD_ABI_MINOR + 1;
  all.missing = "none";
  all.extra_name = "acme.hologram";
  all.extra = &hologram.header;
  static const concord_table_header* const kBigger = &bigger.known.header;
  all.root.find_table = [](void* self, const char* name) {
    return std::string(name) == "rng" ? kBigger : find_table(self, name);
  };
})
// Valid too: struct_size ends before an optional slot at the end.
SPOILED(fine_without_the_last_optional_slot, all.stream.header.struct_size -= 8)
SPOILED(
    fine_but_count_throws,
    all.device.count = [](void*, int32_t*) -> concord_status { throw std::runtime_error("the bus is on fire"); })
