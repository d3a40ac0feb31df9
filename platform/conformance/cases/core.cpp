// The core table and the rules that hold for all tables: versions, capabilities, status codes, sentences.
#include <cctype>
#include <cstring>
#include <set>

#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"
#include "platform/conformance/resources.h"

namespace concord::conformance {
namespace {

constexpr const char* kRequiredTables[] = {CONCORD_CORE_TABLE,   CONCORD_DEVICE_TABLE, CONCORD_MEMORY_TABLE,
                                           CONCORD_STREAM_TABLE, CONCORD_EVENT_TABLE,  CONCORD_COMM_TABLE,
                                           CONCORD_RNG_TABLE};

void tables_say_their_version(Context& t) {
  const concord_plugin* root = t.plugin().root;
  CHECK(root->header.major == CONCORD_ABI_MAJOR, "the plugin's major version is %d", root->header.major);
  for (const char* name : kRequiredTables) {
    const concord_table_header* table = root->find_table(root->self, name);
    CHECK(table != nullptr, "there is no table called %s", name);
    CHECK(table->major == CONCORD_ABI_MAJOR, "the table %s has major version %d", name, table->major);
    CHECK(table->minor <= root->header.minor || table->minor <= CONCORD_ABI_MINOR, "the table %s has minor version %d",
          name, table->minor);
    CHECK(table->struct_size >= sizeof(concord_table_header) + sizeof(void*) && table->struct_size < (1u << 16),
          "the struct_size of table %s is %u", name, table->struct_size);
  }
}

void tables_are_found_by_name(Context& t) {
  const concord_plugin* root = t.plugin().root;
  for (const char* name : kRequiredTables) {
    const concord_table_header* first = root->find_table(root->self, name);
    for (int i = 0; i < 3; ++i) {
      CHECK(root->find_table(root->self, std::string(name).c_str()) == first, "the table %s has moved", name);
    }
  }
  for (const char* name : {"", "nothing", "Core", "core ", "streams"}) {
    CHECK(root->find_table(root->self, name) == nullptr, "there is a table called '%s'", name);
  }
}

void plugin_has_a_name(Context& t) {
  const concord_core_table& core = t.plugin().tables.core;
  const std::string name = core.name;
  CHECK(!name.empty(), "the plugin's name is empty");
  for (const char c : name) {
    CHECK(std::islower(static_cast<unsigned char>(c)) || std::isdigit(static_cast<unsigned char>(c)) || c == '_' ||
              c == '-',
          "the plugin's name '%s' is not lower case without spaces", name.c_str());
  }
  CHECK(std::strlen(core.version) > 0 && std::strlen(core.vendor) > 0 && std::strlen(core.label) > 0,
        "version '%s', vendor '%s', label '%s': none may be empty", core.version, core.vendor, core.label);
  CHECK(std::strlen(core.torch_device_type) > 0, "the libtorch device type is empty");
  CHECK(core.reserved == 0, "a reserved field is %d", core.reserved);
}

void capabilities_are_listed_once(Context& t) {
  const concord_core_table& core = t.plugin().tables.core;
  std::set<std::string> seen;
  for (int64_t i = 0; i < core.capability_count; ++i) {
    const concord_capability& known = core.capabilities[i];
    CHECK(known.name != nullptr && known.name[0] != '\0', "capability %d has no name", static_cast<int>(i));
    CHECK(seen.insert(known.name).second, "the capability %s is listed twice", known.name);
    CHECK(known.value != 0 || (known.note != nullptr && known.note[0] != '\0'),
          "the capability %s is 0 and has no note", known.name);
  }
}

std::vector<Refusal> refusals_of_one_process(Context& t) {
  std::vector<Refusal> all;
  for (auto* list :
       {device_refusals, memory_refusals, stream_refusals, event_refusals, rng_refusals, comm_setup_refusals}) {
    for (Refusal& refusal : list(t)) all.push_back(std::move(refusal));
  }
  return all;
}

void refusals_have_a_sentence(Context& t) {
  for (const Refusal& refusal : refusals_of_one_process(t)) {
    t.step(refusal.what.c_str());
    take_detail();
    const concord_status status = refusal.call();
    const std::string detail = take_detail();
    if (status == CONCORD_STATUS_OK) continue;  // the test of that table fails for it
    CHECK(detail.size() >= 10 && detail.find(' ') != std::string::npos,
          "%s was refused with '%s', which is not an error message", refusal.what.c_str(), detail.c_str());
  }
}

void sentences_belong_to_their_thread(Context& t) {
  const concord_device_table& d = t.device_table();
  run_threads(4, [&](int thread) {
    for (int i = 0; i < 500; ++i) {
      const int32_t device = 1000 + 1000 * thread + i;
      concord_device_info info{};
      info.struct_size = sizeof info;
      CHECK_STATUS(CONCORD_STATUS_INVALID_ARGUMENT, d.info(d.self, device, &info));
      const std::string detail = take_detail();
      CHECK(detail.find(std::to_string(device)) != std::string::npos,
            "device %d was refused on thread %d with an error message that does not name it: '%s'", device, thread,
            detail.c_str());
    }
  });
}

void statuses_are_known(Context& t) {
  for (const Refusal& refusal : refusals_of_one_process(t)) {
    t.step(refusal.what.c_str());
    const concord_status status = refusal.call();
    CHECK(status >= CONCORD_STATUS_OK && status <= CONCORD_STATUS_INTERNAL, "%s returned %d, which is not a status",
          refusal.what.c_str(), status);
    take_detail();
  }
}

struct OptionalSlot {
  const char* capability;
  const char* slot;
  std::function<concord_status()> call;  // wrong arguments, so that nothing happens where it is implemented
};

std::vector<OptionalSlot> optional_slots(Context& t) {
  const concord_memory_table& m = t.memory();
  const concord_stream_table& s = t.streams();
  const concord_event_table& e = t.events();
  const concord_comm_table& c = t.comms();
  const int32_t device = t.device();
  const concord_stream stream = t.stream();
  return {
      {CONCORD_CAP_MEMORY_STREAM_ORDERED, "memory.allocate_on_stream",
       [=, &m] { return m.allocate_on_stream(m.self, device, -1, stream, nullptr); }},
      {CONCORD_CAP_MEMORY_PEER_COPY, "memory.copy_peer_on_stream",
       [=, &m] { return m.copy_peer_on_stream(m.self, nullptr, device, nullptr, device, -1, stream); }},
      {CONCORD_CAP_STREAM_HOST_FUNCTIONS, "stream.launch_host",
       [=, &s] { return s.launch_host(s.self, stream, nullptr, nullptr); }},
      {CONCORD_CAP_EVENT_TIMING, "event.elapsed", [=, &e] { return e.elapsed(e.self, nullptr, nullptr, nullptr); }},
      {CONCORD_CAP_COMM_SPLIT, "comm.split",
       [=, &c] { return c.split(c.self, nullptr, nullptr, -1, nullptr, nullptr); }},
      {CONCORD_CAP_COMM_ABORT, "comm.abort", [=, &c] { return c.abort(c.self, nullptr); }},
  };
}

void capabilities_agree_with_slots(Context& t) {
  for (const OptionalSlot& slot : optional_slots(t)) {
    t.step(slot.slot);
    const concord_status status = slot.call();
    const bool declared = t.capability(slot.capability) != 0;
    take_detail();
    CHECK(declared || status == CONCORD_STATUS_UNIMPLEMENTED, "%s is 0, but %s returned %s instead of UNIMPLEMENTED",
          slot.capability, slot.slot, status_text(status).c_str());
    CHECK(!declared || status == CONCORD_STATUS_INVALID_ARGUMENT,
          "%s is declared, but %s with wrong arguments returned %s instead of INVALID_ARGUMENT", slot.capability,
          slot.slot, status_text(status).c_str());
  }
}

}  // namespace

void add_core_tests(Registry& registry) {
  registry.add({"core", "EveryTableIsThereAndSaysItsVersion", tables_say_their_version});
  registry.add({"core", "TablesAreFoundByNameAndStayWhereTheyAre", tables_are_found_by_name});
  registry.add({"core", "ThePluginHasANameAVersionAVendorAndALabel", plugin_has_a_name});
  registry.add({"core", "CapabilitiesAreListedOnceAndAZeroSaysWhy", capabilities_are_listed_once});
  registry.add({"core", "CapabilitiesAgreeWithTheSlotsTheyStandFor", capabilities_agree_with_slots});
  registry.add({"core", "EveryRefusalHasASentence", refusals_have_a_sentence});
  registry.add({"core", "ASentenceBelongsToTheThreadThatFailed", sentences_belong_to_their_thread});
  registry.add({"core", "EveryStatusIsAKnownCode", statuses_are_known});
  Test end{"core", "TheProcessesLeaveWithoutAnError", nullptr};
  end.most_world = kAnyWorld;
  end.processes = Processes::kEnd;
  registry.add(end);
}

}  // namespace concord::conformance
