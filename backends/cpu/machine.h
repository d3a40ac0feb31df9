// Resources of this machine that the process may use: cores by its affinity, memory by its cgroup. Threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace concord::cpu {

int64_t total_memory();      // bytes; the smaller of the machine's and the cgroup's
int64_t available_memory();  // bytes that could be taken now without swapping; reads some files, so some 50 us
int32_t core_count();        // cores that the calling thread may run on
std::string processor_name();
std::string architecture();
// Returns whether the processor multiplies matrices of bf16 in hardware; without that, libtorch is many times slower in
// bf16 than in fp32.
bool has_bf16_instructions();
// Likewise, given the words of the line of /proc/cpuinfo that lists the processor's features.
bool lists_bf16_instructions(const std::string& features);

}  // namespace concord::cpu
