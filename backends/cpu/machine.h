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

}  // namespace concord::cpu
