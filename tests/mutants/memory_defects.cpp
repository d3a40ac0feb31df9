// Defects of the memory and rng tables.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "tests/mutants/mutant.h"

namespace concord::mutants {
namespace {

constexpr int64_t kOff = 16;  // offset of the blocks of the unaligned allocator

concord_status allocate_unaligned(void* self, int32_t device, int64_t bytes, void** out) {
  if (bytes <= 0 || out == nullptr || bytes > INT64_MAX - kOff) return base().memory.allocate(self, device, bytes, out);
  const concord_status status = base().memory.allocate(self, device, bytes + kOff, out);
  if (status == CONCORD_STATUS_OK) *out = static_cast<char*>(*out) + kOff;
  return status;
}

concord_status release_unaligned(void* self, int32_t device, void* pointer) {
  return base().memory.release(self, device, pointer != nullptr ? static_cast<char*>(pointer) - kOff : nullptr);
}

concord_status copy_short(void* self, void* to, const void* from, int64_t bytes, concord_copy_kind kind) {
  const bool on_device = kind == CONCORD_COPY_DEVICE_TO_DEVICE && bytes > 0;
  return base().memory.copy(self, to, from, on_device ? bytes - 1 : bytes, kind);
}

concord_status queued_copy_long(void* self, void* to, const void* from, int64_t bytes, concord_copy_kind kind,
                                concord_stream stream) {
  const bool on_device = kind == CONCORD_COPY_DEVICE_TO_DEVICE && bytes > 0;
  return base().memory.copy_on_stream(self, to, from, on_device ? bytes + 1 : bytes, kind, stream);
}

concord_status copy_cut(void* self, void* to, const void* from, int64_t bytes, concord_copy_kind kind) {
  return base().memory.copy(self, to, from, std::min<int64_t>(bytes, INT32_MAX), kind);
}

concord_status queued_copy_now(void* self, void* to, const void* from, int64_t bytes, concord_copy_kind kind,
                               concord_stream) {
  return base().memory.copy(self, to, from, bytes, kind);
}

concord_status fill_seven_bits(void* self, void* to, int32_t value, int64_t bytes, concord_stream stream) {
  return base().memory.fill_on_stream(self, to, value & 0x7f, bytes, stream);
}

concord_status fill_now(void* self, void* to, int32_t value, int64_t bytes, concord_stream) {
  const concord_status status = base().memory.fill_on_stream(self, to, value, bytes, aside());
  wait_for(aside());
  return status;
}

// ---- only the first byte of an allocation is known

std::mutex starts_mutex;
std::set<const void*> starts;

concord_status allocate_noted(void* self, int32_t device, int64_t bytes, void** out) {
  const concord_status status = base().memory.allocate(self, device, bytes, out);
  const std::lock_guard lock(starts_mutex);
  if (status == CONCORD_STATUS_OK) starts.insert(*out);
  return status;
}

concord_status describe_starts(void* self, const void* pointer, concord_pointer_info* out) {
  const concord_status status = base().memory.describe_pointer(self, pointer, out);
  const std::lock_guard lock(starts_mutex);
  if (status == CONCORD_STATUS_OK && out->kind == CONCORD_MEMORY_DEVICE && starts.count(pointer) == 0) {
    out->kind = CONCORD_MEMORY_UNKNOWN;
    out->device = -1;
  }
  return status;
}

concord_status release_any(void* self, int32_t device, void* pointer) {
  base().memory.release(self, device, pointer);
  return CONCORD_STATUS_OK;
}

concord_status release_now(void* self, int32_t device, void* pointer, concord_stream) {
  static concord_stream idle = nullptr;
  if (idle == nullptr) base().stream.create(base().stream.self, device, 0, &idle);
  const concord_status status = base().memory.release_on_stream(self, device, pointer, idle);
  wait_for(idle);
  return status;
}

concord_status copy_none(void* self, void* to, const void* from, int64_t bytes, concord_copy_kind kind) {
  return bytes < 0 ? CONCORD_STATUS_OK : base().memory.copy(self, to, from, bytes, kind);
}

concord_status copy_leaking(void* self, void* to, const void* from, int64_t bytes, concord_copy_kind kind) {
  const concord_status status = base().memory.copy(self, to, from, bytes, kind);
  if (status != CONCORD_STATUS_OK) lose_memory();
  return status;
}

// Uses one unguarded buffer for everything from the host.
concord_status copy_by_shared_buffer(void* self, void* to, const void* from, int64_t bytes, concord_copy_kind kind) {
  static uint8_t shared[1 << 16];
  if (kind != CONCORD_COPY_HOST_TO_DEVICE || bytes <= 0 || bytes > int64_t{sizeof shared} || from == nullptr) {
    return base().memory.copy(self, to, from, bytes, kind);
  }
  std::memcpy(shared, from, static_cast<size_t>(bytes));
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  return base().memory.copy(self, to, shared, bytes, kind);
}

concord_status fill_by_shared_request(void* self, const concord_rng_request* request, concord_stream stream) {
  static concord_rng_request shared;
  if (request == nullptr) return base().rng.fill(self, request, stream);
  shared = *request;
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  return base().rng.fill(self, &shared, stream);
}

// ---- rng: the request is changed on its way, or the values after it

template <auto Change>
concord_status fill_changed(void* self, const concord_rng_request* request, concord_stream stream) {
  if (request == nullptr) return base().rng.fill(self, request, stream);
  concord_rng_request changed = *request;
  Change(changed);
  return base().rng.fill(self, &changed, stream);
}

template <auto Change>
void change_request(Tables& tables) {
  tables.rng.fill = fill_changed<Change>;
}

template <class Change>
concord_status fill_then(void* self, const concord_rng_request* request, concord_stream stream, concord_rng_kind kind,
                         Change change) {
  const concord_status status = base().rng.fill(self, request, stream);
  if (status != CONCORD_STATUS_OK || request->kind != kind || request->dtype != CONCORD_DTYPE_F32) return status;
  wait_for(stream);
  Bytes bytes = read_device(request->destination, request->count * 4);
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    float value = 0;
    std::memcpy(&value, &bytes[i], 4);
    value = change(value);
    std::memcpy(&bytes[i], &value, 4);
  }
  write_device(request->destination, bytes);
  return status;
}

concord_status normal_off(void* self, const concord_rng_request* request, concord_stream stream) {
  return fill_then(self, request, stream, CONCORD_RNG_NORMAL, [](float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    bits ^= 1;
    std::memcpy(&value, &bits, 4);
    return value;
  });
}

concord_status uniform_to_the_end(void* self, const concord_rng_request* request, concord_stream stream) {
  return fill_then(self, request, stream, CONCORD_RNG_UNIFORM, [request](float value) {
    const auto high = static_cast<float>(request->high);
    return value == std::nextafter(high, static_cast<float>(request->low)) ? high : value;
  });
}

concord_status rng_now(void* self, const concord_rng_request* request, concord_stream) {
  const concord_status status = base().rng.fill(self, request, aside());
  wait_for(aside());
  return status;
}

std::vector<NamedDefect> rng_defects() {
  return {
      {"RngIgnoresTheOffset", change_request<[](concord_rng_request& r) { r.offset = 0; }>},
      {"RngIgnoresTheUpperOffset", change_request<[](concord_rng_request& r) { r.offset &= 0xffffffff; }>},
      {"RngIgnoresTheUpperKey", change_request<[](concord_rng_request& r) { r.key &= 0xffffffff; }>},
      {"RngIgnoresTheSubsequence", change_request<[](concord_rng_request& r) { r.subsequence = 0; }>},
      {"RngStartsAtWholeBlocks", change_request<[](concord_rng_request& r) { r.offset &= ~uint64_t{3}; }>},
      {"RngIgnoresTheRuns", change_request<[](concord_rng_request& r) { r.run_length = r.run_stride = 0; }>},
      {"IntegersIncludeTheEnd", change_request<[](concord_rng_request& r) {
         const bool fits = r.integer_low < r.integer_high && r.integer_high < INT32_MAX;
         if (r.kind == CONCORD_RNG_INTEGER && fits) ++r.integer_high;
       }>},
      {"NormalIsOffInTheLastBit", [](Tables& tables) { tables.rng.fill = normal_off; }},
      {"UniformReachesTheEnd", [](Tables& tables) { tables.rng.fill = uniform_to_the_end; }},
      {"RngSharesItsRequest", [](Tables& tables) { tables.rng.fill = fill_by_shared_request; }},
      {"RngRunsAtOnce", [](Tables& tables) { tables.rng.fill = rng_now; }},
  };
}

}  // namespace

std::vector<NamedDefect> memory_defects() {
  std::vector<NamedDefect> list = {
      {"AllocationIsNotAligned",
       [](Tables& tables) {
         tables.memory.allocate = allocate_unaligned;
         tables.memory.release = release_unaligned;
       }},
      {"ZeroBytesAreRefused",
       [](Tables& tables) {
         tables.memory.allocate = [](void* self, int32_t device, int64_t bytes, void** out) -> concord_status {
           return bytes == 0 ? CONCORD_STATUS_INVALID_ARGUMENT : base().memory.allocate(self, device, bytes, out);
         };
       }},
      {"OutOfMemoryIsInternal",
       [](Tables& tables) {
         tables.memory.allocate = [](void* self, int32_t device, int64_t bytes, void** out) -> concord_status {
           const concord_status status = base().memory.allocate(self, device, bytes, out);
           return status == CONCORD_STATUS_OUT_OF_MEMORY ? CONCORD_STATUS_INTERNAL : status;
         };
       }},
      {"CopyDropsTheLastByte", [](Tables& tables) { tables.memory.copy = copy_short; }},
      {"QueuedCopyWritesAByteTooMany", [](Tables& tables) { tables.memory.copy_on_stream = queued_copy_long; }},
      {"CopyIsCutAtTwoGigabytes", [](Tables& tables) { tables.memory.copy = copy_cut; }},
      {"QueuedCopyRunsAtOnce", [](Tables& tables) { tables.memory.copy_on_stream = queued_copy_now; }},
      {"FillKeepsSevenBits", [](Tables& tables) { tables.memory.fill_on_stream = fill_seven_bits; }},
      {"FillRunsAtOnce", [](Tables& tables) { tables.memory.fill_on_stream = fill_now; }},
      {"InteriorPointersAreUnknown",
       [](Tables& tables) {
         tables.memory.allocate = allocate_noted;
         tables.memory.describe_pointer = describe_starts;
       }},
      {"ForeignPointerIsReleased", [](Tables& tables) { tables.memory.release = release_any; }},
      {"StreamOrderedReleaseIsImmediate", [](Tables& tables) { tables.memory.release_on_stream = release_now; }},
      {"NegativeBytesAreTakenAsNone", [](Tables& tables) { tables.memory.copy = copy_none; }},
      {"CopiesShareABuffer", [](Tables& tables) { tables.memory.copy = copy_by_shared_buffer; }},
      {"AllocationsLeak",
       [](Tables& tables) {
         tables.memory.release = [](void*, int32_t, void*) -> concord_status { return CONCORD_STATUS_OK; };
       }},
      {"RefusalsLeak", [](Tables& tables) { tables.memory.copy = copy_leaking; }},
  };
  for (const NamedDefect& defect : rng_defects()) list.push_back(defect);
  return list;
}

}  // namespace concord::mutants
