#include "platform/loader/probe.h"

#include <fcntl.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>

#include "platform/base/unique_fd.hpp"

namespace concord::loader {
namespace {

// The kernel reads the memory for us and returns EFAULT if it cannot. A pipe, because it works in every container;
// the raw system call, because the sanitizers look at the buffer of write() themselves.
class Pipe {
 public:
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }

  bool carry(const void* from, void* into, size_t bytes) {
    if (!write_ || syscall(SYS_write, write_.get(), from, bytes) != static_cast<long>(bytes)) return false;
    return read(read_.get(), into, bytes) == static_cast<ssize_t>(bytes);
  }

 private:
  UniqueFd read_;
  UniqueFd write_;
};

constexpr size_t kChunk = 512;  // below PIPE_BUF: all or nothing

struct CodeSearch {
  uintptr_t address;
  bool found;
};

int look_in_object(dl_phdr_info* object, size_t, void* data) {
  auto* search = static_cast<CodeSearch*>(data);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (search->address >= begin && search->address - begin < segment.p_memsz) search->found = true;
  }
  return search->found ? 1 : 0;
}

// Code that was made at run time belongs to no library; the kernel knows it all the same.
bool executable_mapping(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char flags[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, flags) != 3) continue;
    if (address >= begin && address < end) return flags[2] == 'x';
  }
  return false;
}

}  // namespace

bool read_memory(const void* from, void* into, size_t bytes) {
  Pipe pipe;
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(into);
  for (size_t done = 0; done < bytes;) {
    const size_t part = bytes - done < kChunk ? bytes - done : kChunk;
    if (!pipe.carry(source + done, target + done, part)) return false;
    done += part;
  }
  return true;
}

std::optional<std::string> read_string(const char* from, size_t limit) {
  Pipe pipe;
  std::string result;
  while (result.size() < limit) {
    // Up to the next multiple of a chunk, so that no read crosses into a page the string does not reach.
    const uintptr_t address = reinterpret_cast<uintptr_t>(from) + result.size();
    const size_t part = kChunk - address % kChunk;
    char piece[kChunk];
    if (!pipe.carry(from + result.size(), piece, part)) return std::nullopt;
    for (size_t i = 0; i < part; ++i) {
      if (piece[i] == '\0') return result;
      result += piece[i];
    }
  }
  return std::nullopt;
}

bool is_code(const void* function) {
  CodeSearch search{reinterpret_cast<uintptr_t>(function), false};
  dl_iterate_phdr(&look_in_object, &search);
  return search.found || executable_mapping(search.address);
}

}  // namespace concord::loader
