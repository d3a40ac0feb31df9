#include "backends/cpu/machine.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "platform/base/host_memory.hpp"

namespace concord::cpu {
namespace {

// The number in a file that holds one, as cgroup files do; |missing| if it holds none ("max") or does not exist.
int64_t number_in(const char* path, int64_t missing) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : missing;
}

// Returns the text after "|key| :" in a file of such lines; "" if the key is missing.
std::string field_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(':');
    const size_t begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "";
}

int64_t physical_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

int64_t cgroup_limit() {
  return std::min(number_in("/sys/fs/cgroup/memory.max", INT64_MAX),
                  number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", INT64_MAX));
}

}  // namespace

int64_t total_memory() { return std::min(physical_memory(), cgroup_limit()); }

int64_t available_memory() { return std::min(physical_memory(), available_host_memory().available); }

int32_t core_count() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));  // more cores than the set has room for
}

std::string processor_name() {
  const std::string model = field_in("/proc/cpuinfo", "model name");
  return model.empty() ? architecture() + " processor" : model;
}

bool lists_bf16_instructions(const std::string& features) {
  std::istringstream words(features);
  return std::any_of(std::istream_iterator<std::string>(words), {}, [](const std::string& word) {
    return word == "avx512_bf16" || word == "amx_bf16" || word == "bf16";  // the last is ARM's
  });
}

bool has_bf16_instructions() {
  const char* const cpuinfo = "/proc/cpuinfo";
  const std::string of_x86 = field_in(cpuinfo, "flags");
  return lists_bf16_instructions(of_x86.empty() ? field_in(cpuinfo, "Features") : of_x86);
}

std::string architecture() {
  utsname names{};
  return uname(&names) == 0 ? names.machine : "unknown";
}

}  // namespace concord::cpu
