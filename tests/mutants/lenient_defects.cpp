// Defects of a plugin that accepts unknown flags and reserved fields, to which a later version of the ABI may assign a
// meaning that this plugin would then ignore.
#include <cstring>

#include "tests/mutants/mutant.h"

namespace concord::mutants {
namespace {

// Does not copy data beyond the caller's struct_size.
template <class Struct>
Struct without_reserved(const Struct* given) {
  Struct known{};
  std::memcpy(&known, given, given->struct_size < sizeof known ? given->struct_size : sizeof known);
  known.reserved = 0;
  return known;
}

concord_status create_with_any_flags(void* self, int32_t device, uint32_t flags, concord_event* out) {
  return base().event.create(self, device, flags & CONCORD_EVENT_TIMING, out);
}

concord_status fill_any(void* self, const concord_rng_request* request, concord_stream stream) {
  if (request == nullptr) return base().rng.fill(self, request, stream);
  const concord_rng_request known = without_reserved(request);
  return base().rng.fill(self, &known, stream);
}

concord_status init_with_any_config(void* self, int32_t device, int32_t world, int32_t rank, const void* id,
                                    int64_t id_bytes, const concord_comm_config* config, concord_comm* out) {
  if (config == nullptr) return base().comm.init(self, device, world, rank, id, id_bytes, config, out);
  const concord_comm_config known = without_reserved(config);
  return base().comm.init(self, device, world, rank, id, id_bytes, &known, out);
}

concord_status split_with_any_config(void* self, concord_comm parent, const int32_t* ranks, int32_t count,
                                     const concord_comm_config* config, concord_comm* out) {
  if (config == nullptr) return base().comm.split(self, parent, ranks, count, config, out);
  const concord_comm_config known = without_reserved(config);
  return base().comm.split(self, parent, ranks, count, &known, out);
}

concord_status send_any(void* self, concord_comm comm, const concord_p2p_item* items, int64_t count,
                        concord_stream stream) {
  if (items == nullptr || count < 0) return base().comm.batch_p2p(self, comm, items, count, stream);
  std::vector<concord_p2p_item> known(items, items + count);
  for (concord_p2p_item& item : known) item.reserved = 0;
  return base().comm.batch_p2p(self, comm, known.data(), count, stream);
}

concord_status describe_with_more(void* self, const void* pointer, concord_pointer_info* out) {
  const concord_status status = base().memory.describe_pointer(self, pointer, out);
  if (status == CONCORD_STATUS_OK && out->struct_size >= sizeof *out) out->reserved = 7;
  return status;
}

}  // namespace

std::vector<NamedDefect> lenient_defects() {
  return {
      {"UnknownEventFlagsAreAccepted", [](Tables& tables) { tables.event.create = create_with_any_flags; }},
      {"ReservedFieldOfARequestIsIgnored", [](Tables& tables) { tables.rng.fill = fill_any; }},
      {"ReservedFieldOfAConfigIsIgnored", [](Tables& tables) { tables.comm.init = init_with_any_config; }},
      {"ReservedFieldOfASplitIsIgnored", [](Tables& tables) { tables.comm.split = split_with_any_config; }},
      {"ReservedFieldOfATransferIsIgnored", [](Tables& tables) { tables.comm.batch_p2p = send_any; }},
      {"ReservedFieldOfAPointerIsSet", [](Tables& tables) { tables.memory.describe_pointer = describe_with_more; }},
      {"ReservedFieldOfCoreIsSet", [](Tables& tables) { tables.core.reserved = 1; }},
  };
}

}  // namespace concord::mutants
