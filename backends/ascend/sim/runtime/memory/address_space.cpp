#include "backends/ascend/sim/runtime/memory/address_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "backends/ascend/sim/runtime/error.h"

namespace concord::ascend::sim {
namespace {

[[noreturn]] void out_of_memory(const char* doing, size_t bytes) {
  fail(abi::kRtMemoryAllocation,
       text("%s %zu bytes: %s; is CONCORD_SIM_NPU_MEMORY or CONCORD_SIM_NPU_DEVICES too large "
            "for this machine?",
            doing, bytes, std::strerror(errno)));
}

}  // namespace

Twin reserve_twin(size_t bytes) {
  void* both = ::mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (both == MAP_FAILED) out_of_memory("reserving addresses for", bytes);
  auto* shown = static_cast<std::byte*>(both);
  return {shown, shown + bytes, bytes};
}

void release_twin(const Twin& twin) { ::munmap(twin.shown, 2 * twin.bytes); }

UniqueFd create_memory_file(const char* name, size_t bytes) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file) out_of_memory("making a memory file of", bytes);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) out_of_memory("making a memory file of", bytes);
  return file;
}

void map_hidden(std::byte* hidden, size_t bytes, int file, size_t offset) {
  void* mapped = ::mmap(hidden, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                        static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) out_of_memory("mapping", bytes);
}

void unmap_hidden(std::byte* hidden, size_t bytes) {
  ::mmap(hidden, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace concord::ascend::sim
