// The two mappings of device memory: the addresses that callers see, which cannot be accessed, and hidden ones that
// can.
//
// The memory of a device is one anonymous file (memfd), mapped once, at a hidden address. Callers get addresses of a
// range of the same size that is reserved without any access (PROT_NONE), so the host cannot read or write device
// memory except through the runtime: a stray dereference causes SIGSEGV. Operators and copies translate an address by
// adding a constant. The cost is that addition and twice the address space; pages are used once.
//
// Protecting the bytes themselves (mprotect around each operator) would not work: protection holds for the process, not
// for a thread, so memory would be accessible whenever a stream runs.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/base/unique_fd.hpp"

namespace concord::ascend::sim {

// A reserved range and its hidden twin.
struct Twin {
  std::byte* shown = nullptr;
  std::byte* hidden = nullptr;
  size_t bytes = 0;

  bool contains(const void* address) const {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= shown && at < shown + bytes;
  }
  std::byte* translate(const void* address) const { return hidden + (static_cast<const std::byte*>(address) - shown); }
};

// Reserves both halves of a twin, which are not accessible yet. Throws 207001 if the address space is exhausted.
Twin reserve_twin(size_t bytes);
void release_twin(const Twin& twin);

// Creates an anonymous file of |bytes| zeros, without allocating memory. Throws 207001.
UniqueFd create_memory_file(const char* name, size_t bytes);

// Maps |bytes| of |file|, starting at |offset|, at |hidden|, a part of a twin.
void map_hidden(std::byte* hidden, size_t bytes, int file, size_t offset);
void unmap_hidden(std::byte* hidden, size_t bytes);

size_t round_up(size_t value, size_t unit);
size_t page_bytes();

}  // namespace concord::ascend::sim
