#include "backends/cuda/pinned_blocks.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace concord::cuda {
namespace {

// Below, threads cost more than they save; above, one registration fails (at 512 GiB), and copies may not span two.
constexpr size_t kMinBytes = size_t{256} << 20, kMaxBytes = size_t{256} << 30;

size_t usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<size_t>(CPU_COUNT(&set)) : 1;
}

// Writes to every page, so that registering only pins them.
void touch(char* begin, size_t bytes) {
  constexpr size_t kPage = 4096, kMaxThreads = 16;
  const size_t count = std::clamp<size_t>(usable_processors(), 1, kMaxThreads);
  const size_t share = (bytes / count + kPage) / kPage * kPage;
  std::vector<std::jthread> threads;
  for (size_t first = 0; first < bytes; first += share) {
    threads.emplace_back([=] {
      const size_t last = std::min(first + share, bytes);
      for (size_t at = first; at < last; at += kPage) *static_cast<volatile char*>(begin + at) = 0;
    });
  }
}

}  // namespace

void* PinnedBlocks::allocate(size_t bytes) {
  if (bytes < kMinBytes || bytes > kMaxBytes) return nullptr;
  void* const pointer = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pointer == MAP_FAILED) return nullptr;
  touch(static_cast<char*>(pointer), bytes);
  if (cudaHostRegister(pointer, bytes, cudaHostRegisterPortable) != cudaSuccess) {
    cudaGetLastError();
    ::munmap(pointer, bytes);
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  bytes_.emplace(pointer, bytes);
  return pointer;
}

bool PinnedBlocks::release(void* pointer) {
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = bytes_.find(pointer);
    if (found == bytes_.end()) return false;
    bytes = found->second;
    bytes_.erase(found);
  }
  check_cuda(cudaHostUnregister(pointer), "cudaHostUnregister");
  ::munmap(pointer, bytes);
  return true;
}

}  // namespace concord::cuda
