// Host memory that may still be allocated. A process that uses more is killed by the kernel without a message. Header
// only, so every layer may include it. Threads: any.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace concord {

struct HostMemory {
  int64_t available = 0;  // bytes
  std::string limit;      // what limits it: a file, and the line in it
};

namespace host_memory_detail {

// The number in the file, which has nothing else, or that after the word |key|; none for "max" and missing files.
inline std::optional<int64_t> number_in(const std::string& path, std::string_view key = {}) {
  std::ifstream file(path);
  int64_t number = 0;
  if (key.empty()) return file >> number ? std::optional(number) : std::nullopt;
  for (std::string word; file >> word;) {
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

// The path of this process in the hierarchy of version 2 (|controllers| is empty) or of the memory controller.
inline std::string cgroup_path(const std::string& root, std::string_view controllers) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controllers) return line.substr(second + 1);
  }
  return "/";
}

struct CgroupFiles {
  const char* folder;
  const char* controllers;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // a line of memory.stat: page cache that counts as used
};
inline constexpr CgroupFiles kCgroups[] = {
    {"/sys/fs/cgroup", "", "memory.max", "memory.current", "inactive_file"},
    {"/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}};

// Lowers |memory| to what each group that this process is in, up to the root, has left.
inline void apply_cgroups(const std::string& root, const CgroupFiles& files, HostMemory* memory) {
  std::string path = cgroup_path(root, files.controllers);
  if (path == "/") path.clear();
  for (;; path.resize(path.rfind('/'))) {
    const std::string folder = root + files.folder + path + "/";
    if (const std::optional<int64_t> limit = number_in(folder + files.limit)) {
      const int64_t used = number_in(folder + files.usage).value_or(0) -
                           number_in(folder + "memory.stat", files.reclaimable).value_or(0);
      const int64_t left = std::max<int64_t>(*limit - std::max<int64_t>(used, 0), 0);
      if (left < memory->available) *memory = {left, folder + files.limit};
    }
    if (path.find('/') == std::string::npos) return;
  }
}

}  // namespace host_memory_detail

// The least of MemAvailable of the machine and what is left in the groups (cgroups) of this process, page cache that
// can be dropped included. |root| precedes /proc and /sys, for tests.
inline HostMemory available_host_memory(const std::string& root = "") {
  namespace detail = host_memory_detail;
  const std::string meminfo = root + "/proc/meminfo";
  HostMemory memory{INT64_MAX, "MemAvailable in " + meminfo};
  if (const std::optional<int64_t> kib = detail::number_in(meminfo, "MemAvailable:")) memory.available = *kib * 1024;
  for (const detail::CgroupFiles& files : detail::kCgroups) detail::apply_cgroups(root, files, &memory);
  return memory;
}

}  // namespace concord
