// Thousands of create and destroy cycles: memory, file descriptors and threads must be released.
#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "platform/conformance/collectives.h"
#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"

// Defined under the sanitizers, whose allocator is unknown to mallinfo2.
extern "C" size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace concord::conformance {
namespace {

struct Usage {
  int64_t heap = 0;      // bytes that malloc has given out
  int64_t resident = 0;  // bytes of memory that the process occupies
  int64_t device = 0;    // bytes of device memory in use, by all processes
  int64_t files = 0;
  int64_t threads = 0;
};

int64_t count_entries(const char* folder) {
  int64_t count = 0;
  DIR* entries = opendir(folder);
  while (entries != nullptr && readdir(entries) != nullptr) ++count;
  if (entries != nullptr) closedir(entries);
  return count;
}

int64_t resident_bytes() {
  long long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file != nullptr && std::fscanf(file, "%*s %lld", &pages) != 1) pages = 0;
  if (file != nullptr) std::fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}

Usage usage(Context& t) {
  Usage now;
  now.heap = __sanitizer_get_current_allocated_bytes != nullptr
                 ? static_cast<int64_t>(__sanitizer_get_current_allocated_bytes())
                 : static_cast<int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
  now.resident = resident_bytes();
  now.files = count_entries("/proc/self/fd");
  now.threads = count_entries("/proc/self/task");
  int64_t free = 0;
  int64_t total = 0;
  CHECK_OK(t.memory().info(t.memory().self, t.device(), &free, &total));
  now.device = total - free;
  return now;
}

struct Limits {
  int64_t heap_per_cycle = 16;           // less than the smallest object
  int64_t resident = int64_t{64} << 20;  // caches of allocators come and go
  int64_t device = int64_t{1} << 40;     // only if a cycle's device memory is far above what others may take
};

// Returns by how much |cycles| cycles raised the device memory in use: |growth|, or less if a repetition shows less.
// Other processes may take device memory at any time; a leak takes it every time.
int64_t least_device_growth(Context& t, int cycles, int64_t growth, int64_t limit, const std::function<void()>& cycle) {
  constexpr int kRepetitions = 3;
  for (int round = 0; round < kRepetitions && growth > limit; ++round) {
    const int64_t before = usage(t).device;
    for (int i = 0; i < cycles; ++i) cycle();
    growth = std::min(growth, usage(t).device - before);
  }
  return growth;
}

// A leak shows in every cycle, a cache or a lazily made table only in the first ones.
void require_no_leak(Context& t, int cycles, const Limits& limits, const std::function<void()>& cycle) {
  for (int i = 0; i < 20 + cycles / 10; ++i) cycle();
  const Usage before = usage(t);
  for (int i = 0; i < cycles; ++i) cycle();
  const int64_t most_heap = before.heap + limits.heap_per_cycle * cycles + 16384;
  Usage after = usage(t);
  eventually([&] {  // threads may take a moment to end, and what they hold is freed after them
    after = usage(t);
    return after.threads <= before.threads && after.files <= before.files && after.heap <= most_heap;
  });
  CHECK(after.threads <= before.threads, "%d cycles leaked %lld threads", cycles,
        static_cast<long long>(after.threads - before.threads));
  CHECK(after.files <= before.files, "%d cycles leaked %lld file descriptors", cycles,
        static_cast<long long>(after.files - before.files));
  CHECK(after.heap <= most_heap, "%d cycles leaked %lld bytes of the heap", cycles,
        static_cast<long long>(after.heap - before.heap));
  // A sanitizer keeps freed memory for a while on purpose.
  const bool sanitized = __sanitizer_get_current_allocated_bytes != nullptr;
  CHECK(sanitized || after.resident - before.resident <= limits.resident, "%d cycles leaked %lld bytes of memory",
        cycles, static_cast<long long>(after.resident - before.resident));
  if (sanitized) return;
  const int64_t device = least_device_growth(t, cycles, after.device - before.device, limits.device, cycle);
  CHECK(device <= limits.device, "%d cycles leaked %lld bytes of device memory", cycles,
        static_cast<long long>(device));
}

int cycles(const Context& t, int full) { return t.quick() ? full / 8 : full; }

void allocations(Context& t) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  Limits limits;
  limits.device = int64_t{128} << 20;
  require_no_leak(t, 512, limits, [&] {
    DeviceMemory memory(t, kBytes);
    fill(t, memory.get(), 1, kBytes, t.stream());
    synchronize(t, t.stream());
  });
}

void host_allocations(Context& t) {
  require_no_leak(t, 512, {}, [&] { const HostMemory memory(t, int64_t{1} << 20); });
}

void stream_ordered_allocations(Context& t) {
  const concord_memory_table& m = t.memory();
  constexpr int64_t kBytes = int64_t{1} << 20;
  Limits limits;
  limits.device = int64_t{128} << 20;
  require_no_leak(t, 512, limits, [&] {
    void* pointer = nullptr;
    CHECK_OK(m.allocate_on_stream(m.self, t.device(), kBytes, t.stream(), &pointer));
    fill(t, pointer, 1, kBytes, t.stream());
    CHECK_OK(m.release_on_stream(m.self, t.device(), pointer, t.stream()));
    synchronize(t, t.stream());
  });
}

void streams(Context& t) {
  DeviceMemory memory(t, 64);
  require_no_leak(t, cycles(t, 2000), {}, [&] {
    Stream stream(t);
    fill(t, memory.get(), 1, 64, stream.get());
    CHECK_OK(stream.destroy());
    CHECK_OK(t.device_table().synchronize(t.device_table().self, t.device()));
  });
}

void events(Context& t) {
  require_no_leak(t, cycles(t, 20000), {}, [&] {
    Event event(t, CONCORD_EVENT_TIMING);
    CHECK_OK(t.events().record(t.events().self, event.get(), t.stream()));
    CHECK_OK(t.streams().wait_event(t.streams().self, t.stream(), event.get()));
    CHECK_OK(t.events().synchronize(t.events().self, event.get()));
    CHECK_OK(event.destroy());
  });
}

void queued_work(Context& t) {
  DeviceMemory memory(t, 64);
  DeviceMemory other(t, 64);
  require_no_leak(t, cycles(t, 8000), {}, [&] {
    fill(t, memory.get(), 1, 64, t.stream());
    copy_async(t, other.get(), memory.get(), 64, CONCORD_COPY_DEVICE_TO_DEVICE, t.stream());
    synchronize(t, t.stream());
  });
}

void refusals(Context& t) {
  const std::vector<Refusal> list = memory_refusals(t);
  require_no_leak(t, cycles(t, 2000), {}, [&] { require_refused(t, list); });
}

// A vendor's set-up can take half a second. How many cycles fit into 15 s, by the slowest rank's measure, at least 24.
int affordable_cycles(Context& t, int wanted, const std::function<void()>& cycle) {
  constexpr int kTrials = 4;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTrials; ++i) cycle();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const int mine = static_cast<int>(std::clamp(15.0 * kTrials / took.count(), 24.0, static_cast<double>(wanted)));
  int agreed = wanted;
  for (const std::string& theirs : t.gather(std::to_string(mine))) agreed = std::min(agreed, std::stoi(theirs));
  return agreed;
}

// The count of the heap includes what the parent's messages take for a moment, so the bound per cycle is wider.
void communicators(Context& t) {
  Limits limits;
  limits.heap_per_cycle = 200;
  const auto cycle = [&] {
    Comm comm = Comm::connect(t);
    CHECK_OK(t.comms().barrier(t.comms().self, comm.get(), t.stream()));
    synchronize(t, t.stream());
    CHECK_OK(comm.destroy());
  };
  require_no_leak(t, affordable_cycles(t, cycles(t, t.world() == 1 ? 800 : 320), cycle), limits, cycle);
}

void collectives(Context& t) {
  DeviceMemory memory(t, 4096);
  const concord_comm_table& c = t.comms();
  const concord_comm comm = t.world_comm();
  require_no_leak(t, t.quick() ? 1000 : 4000, {}, [&] {
    CHECK_OK(
        c.all_reduce(c.self, comm, memory.get(), memory.get(), 100, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, t.stream()));
    synchronize(t, t.stream());
  });
}

}  // namespace

void add_leak_tests(Registry& registry) {
  registry.add({"memory", "AllocationsLeakNothing", allocations});
  registry.add({"memory", "HostAllocationsLeakNothing", host_allocations});
  registry.add({"memory",
                "StreamOrderedAllocationsLeakNothing",
                stream_ordered_allocations,
                {CONCORD_CAP_MEMORY_STREAM_ORDERED}});
  registry.add({"memory", "RefusedCallsLeakNothing", refusals});
  registry.add({"stream", "CreatedAndDestroyedStreamsLeakNothing", streams});
  registry.add({"stream", "QueuedWorkLeaksNothing", queued_work});
  registry.add({"event", "CreatedAndDestroyedEventsLeakNothing", events});
  Test comms{"comm", "CreatedAndDestroyedCommunicatorsLeakNothing", communicators};
  comms.most_world = 2;
  comms.deadline_s = 120;
  registry.add(comms);
  Test operations{"comm", "CollectivesLeakNothing", collectives};
  operations.most_world = 2;
  registry.add(operations);
}

}  // namespace concord::conformance
