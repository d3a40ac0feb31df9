// A mutant is a real plugin with exactly one defect. libconcord_mutant.so opens the plugin that the setting mutant.base
// (CONCORD_MUTANT_BASE) names, returns copies of its tables, and replaces the functions that the defect named by the
// setting mutant (CONCORD_MUTANT) affects. Everything else goes directly to the real plugin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/abi/concord.h"

namespace concord::mutants {

struct Tables {
  concord_core_table core;
  concord_device_table device;
  concord_memory_table memory;
  concord_stream_table stream;
  concord_event_table event;
  concord_comm_table comm;
  concord_rng_table rng;
};

// The real plugin's tables.
const Tables& base();

// Puts a defect into |tables|, which are copies of base(). A replaced function receives the real table's self.
using Defect = void (*)(Tables& tables);

struct NamedDefect {
  const char* name;
  Defect apply;
};

std::vector<NamedDefect> core_defects();    // also device
std::vector<NamedDefect> memory_defects();  // also rng
std::vector<NamedDefect> stream_defects();  // also event
std::vector<NamedDefect> comm_defects();    // values
std::vector<NamedDefect> comm_order_defects();
std::vector<NamedDefect> comm_fault_defects();
std::vector<NamedDefect> lenient_defects();  // in any table: accepts flags and reserved fields of a later version

// TablesMove, a defect of the plugin as a whole: find_table returns a different pointer each time.
bool moves_tables();

// ---- helpers of defects: simple and slow, by way of the real plugin; every one waits for the stream

using Bytes = std::vector<uint8_t>;

int64_t element_size(concord_dtype dtype);
int32_t rank_of(concord_comm comm);
int32_t size_of(concord_comm comm);
void wait_for(concord_stream stream);
// Returns a stream without work of the caller: the null stream, or the mutant's own stream if the plugin rejects null.
concord_stream aside();
void lose_memory();  // 64 bytes
Bytes read_device(const void* from, int64_t bytes);
void write_device(void* to, const Bytes& bytes);
// Returns the concatenated |send| of all ranks. All ranks must call it.
Bytes gather(concord_comm comm, const void* send, int64_t count, concord_dtype dtype, concord_stream stream);

}  // namespace concord::mutants
