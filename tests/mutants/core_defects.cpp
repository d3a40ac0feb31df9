// Defects of the core and device tables.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "tests/mutants/mutant.h"

namespace concord::mutants {
namespace {

void nothing_in_the_tables(Tables&) {}

// Returns a modifiable copy, which lives as long as the plugin.
std::vector<concord_capability>& capabilities_of(const Tables& tables) {
  return *new std::vector<concord_capability>(tables.core.capabilities,
                                              tables.core.capabilities + tables.core.capability_count);
}

void use(Tables& tables, const std::vector<concord_capability>& list) {
  tables.core.capabilities = list.data();
  tables.core.capability_count = static_cast<int64_t>(list.size());
}

void add_capability(Tables& tables, const char* name, int64_t value) {
  std::vector<concord_capability>& list = capabilities_of(tables);
  list.push_back({name, value, nullptr});
  use(tables, list);
}

void declare(Tables& tables, const char* name, int64_t value) {
  std::vector<concord_capability>& list = capabilities_of(tables);
  for (concord_capability& capability : list) {
    if (std::strcmp(capability.name, name) == 0) capability.value = value;
  }
  use(tables, list);
}

concord_status no_abort(void*, concord_comm) { return CONCORD_STATUS_UNIMPLEMENTED; }

std::atomic<int32_t> shared_device{0};

}  // namespace

std::vector<NamedDefect> core_defects() {
  return {
      {"SentencesAreLost", nothing_in_the_tables},
      {"SentencesAreShared", nothing_in_the_tables},
      {"TablesMove", nothing_in_the_tables},
      {"CapabilityIsListedTwice",
       [](Tables& tables) {
         add_capability(tables, tables.core.capabilities[0].name, tables.core.capabilities[0].value + 1);
       }},
      {"AbortIsDeclaredAndMissing",
       [](Tables& tables) {
         tables.comm.abort = no_abort;
         declare(tables, CONCORD_CAP_COMM_ABORT, 1);
       }},
      {"StatusIsUnknown",
       [](Tables& tables) {
         tables.device.info = [](void* self, int32_t device, concord_device_info* out) -> concord_status {
           return base().device.info(self, device, out) == CONCORD_STATUS_OK ? CONCORD_STATUS_OK : 99;
         };
       }},
      {"VersionIsEmpty", [](Tables& tables) { tables.core.version = ""; }},
      {"ProcessEndsWithAnError", [](Tables&) { std::atexit([] { _exit(3); }); }},
      {"WrongDeviceIsAccepted",
       [](Tables& tables) {
         tables.device.set_current = [](void* self, int32_t device) -> concord_status {
           base().device.set_current(self, device);
           return CONCORD_STATUS_OK;
         };
       }},
      {"DeviceInfoIgnoresStructSize",
       [](Tables& tables) {
         tables.device.info = [](void* self, int32_t device, concord_device_info* out) -> concord_status {
           concord_device_info whole{};
           whole.struct_size = sizeof whole;
           const concord_status status = base().device.info(self, device, out == nullptr ? nullptr : &whole);
           if (status == CONCORD_STATUS_OK) std::memcpy(out, &whole, sizeof whole);
           return status;
         };
       }},
      {"PeakIsInTeraflops",
       [](Tables& tables) {
         tables.device.info = [](void* self, int32_t device, concord_device_info* out) -> concord_status {
           const concord_status status = base().device.info(self, device, out);
           const bool fits = status == CONCORD_STATUS_OK && out->struct_size >= sizeof *out;
           if (fits) out->peak_flops_bf16 = 989.5;
           return status;
         };
       }},
      {"CurrentDeviceIsForgotten",
       [](Tables& tables) {
         tables.device.get_current = [](void*, int32_t* out) -> concord_status {
           *out = 0;
           return CONCORD_STATUS_OK;
         };
       }},
      {"CurrentDeviceIsShared",
       [](Tables& tables) {
         tables.device.set_current = [](void* self, int32_t device) -> concord_status {
           const concord_status status = base().device.set_current(self, device);
           if (status == CONCORD_STATUS_OK) shared_device = device;
           return status;
         };
         tables.device.get_current = [](void*, int32_t* out) -> concord_status {
           *out = shared_device;
           return CONCORD_STATUS_OK;
         };
       }},
      {"DeviceSynchronizeReturnsAtOnce",
       [](Tables& tables) {
         tables.device.synchronize = [](void*, int32_t) -> concord_status { return CONCORD_STATUS_OK; };
       }},
  };
}

}  // namespace concord::mutants
