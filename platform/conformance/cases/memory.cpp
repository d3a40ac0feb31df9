// The memory table: allocations, copies, fills, and what pointers are said to be.
#include <cstring>

#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"
#include "platform/conformance/resources.h"

namespace concord::conformance {
namespace {

constexpr int64_t kSizes[] = {0, 1, 3, 63, 64, 65, 4095, 4096, 4097, 65535, 65537, (1 << 20) + 1};

Bytes pattern(int64_t bytes, uint32_t seed) {
  Bytes result(static_cast<size_t>(bytes));
  for (size_t i = 0; i < result.size(); ++i) {
    const uint32_t mixed = (static_cast<uint32_t>(i) + seed) * 2654435761u;
    result[i] = static_cast<uint8_t>(mixed >> 24);
  }
  return result;
}

std::string first_difference(const Bytes& got, const Bytes& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (got[i] != wanted[i]) return text("byte %zu of %zu is %d instead of %d", i, wanted.size(), got[i], wanted[i]);
  }
  return "";
}

void require_equal(Context& t, const Bytes& got, const Bytes& wanted, const char* what) {
  if (got != wanted) t.fail(std::string(what) + ": " + first_difference(got, wanted));
}

void allocations_are_apart(Context& t) {
  std::vector<DeviceMemory> blocks;
  for (const int64_t bytes : {1, 63, 64, 100, 4096, 65537}) {
    for (int i = 0; i < 4; ++i) {
      blocks.emplace_back(t, bytes);
      CHECK(reinterpret_cast<uintptr_t>(blocks.back().get()) % 64 == 0,
            "%lld bytes were allocated at %p, which is not a multiple of 64", static_cast<long long>(bytes),
            blocks.back().get());
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i].write(pattern(blocks[i].bytes(), static_cast<uint32_t>(i)));
  for (size_t i = 0; i < blocks.size(); ++i) {
    require_equal(t, blocks[i].read(), pattern(blocks[i].bytes(), static_cast<uint32_t>(i)),
                  "one of several allocations");
  }
}

void zero_bytes_are_fine(Context& t) {
  const concord_memory_table& m = t.memory();
  int something = 0;
  void* pointer = &something;
  CHECK_OK(m.allocate(m.self, t.device(), 0, &pointer));
  CHECK(pointer == nullptr, "an allocation of 0 bytes returned %p", pointer);
  pointer = &something;
  CHECK_OK(m.allocate_host(m.self, 0, &pointer));
  CHECK(pointer == nullptr, "a host allocation of 0 bytes returned %p", pointer);
  CHECK_OK(m.release(m.self, t.device(), nullptr));
  CHECK_OK(m.release_host(m.self, nullptr));
  CHECK_OK(m.copy(m.self, nullptr, nullptr, 0, CONCORD_COPY_HOST_TO_DEVICE));
  CHECK_OK(m.copy_on_stream(m.self, nullptr, nullptr, 0, CONCORD_COPY_DEVICE_TO_DEVICE, t.stream()));
  CHECK_OK(m.fill_on_stream(m.self, nullptr, 1, 0, t.stream()));
  synchronize(t, t.stream());
}

void out_of_memory_is_said(Context& t) {
  const concord_memory_table& m = t.memory();
  int64_t free = 0;
  int64_t total = 0;
  CHECK_OK(m.info(m.self, t.device(), &free, &total));
  for (const int64_t bytes : {total + (total / 2), int64_t{1} << 55, INT64_MAX}) {
    void* pointer = nullptr;
    CHECK_STATUS(CONCORD_STATUS_OUT_OF_MEMORY, m.allocate(m.self, t.device(), bytes, &pointer));
    const std::string detail = take_detail();
    CHECK(detail.find(std::to_string(bytes)) != std::string::npos,
          "the error message does not name the %lld bytes requested: '%s'", static_cast<long long>(bytes),
          detail.c_str());
  }
  DeviceMemory after(t, 4096);
  after.write(pattern(4096, 1));
  require_equal(t, after.read(), pattern(4096, 1), "an allocation after one that ran out of memory");
}

void info_counts_bytes(Context& t) {
  const concord_memory_table& m = t.memory();
  int64_t free = -1;
  int64_t total = -1;
  CHECK_OK(m.info(m.self, t.device(), &free, &total));
  CHECK(total > 0 && free >= 0 && free <= total, "%lld of %lld bytes are free", static_cast<long long>(free),
        static_cast<long long>(total));
}

// Host to device, device to device, device to host; from and to odd addresses; guard bytes around all.
void copies_move_every_byte(Context& t) {
  const concord_memory_table& m = t.memory();
  for (const int64_t bytes : kSizes) {
    for (const int64_t shift : {0, 1, 7}) {
      Guarded first(t, bytes, shift);
      Guarded second(t, bytes, 7 - shift);
      const Bytes wanted = pattern(bytes, static_cast<uint32_t>(bytes));
      first.write(wanted);
      CHECK_OK(m.copy(m.self, second.get(), first.get(), bytes, CONCORD_COPY_DEVICE_TO_DEVICE));
      require_equal(t, second.read("copied"), wanted, "memory.copy");
      require_equal(t, first.read("source"), wanted, "the source of memory.copy");
    }
  }
}

void host_copies_move_every_byte(Context& t) {
  const concord_memory_table& m = t.memory();
  const Bytes from = pattern(5000, 9);
  Bytes to(5000, 0);
  CHECK_OK(m.copy(m.self, to.data(), from.data(), 5000, CONCORD_COPY_HOST_TO_HOST));
  require_equal(t, to, from, "memory.copy from host to host");
}

void queued_copies_move_every_byte(Context& t) {
  Stream stream(t);
  for (const int64_t bytes : kSizes) {
    HostMemory source(t, bytes + 1);
    HostMemory target(t, bytes + 1);
    const Bytes wanted = pattern(bytes, 5);
    if (bytes > 0) std::memcpy(source.get(), wanted.data(), wanted.size());  // an empty vector's data() may be null
    Guarded first(t, bytes, 1);
    Guarded second(t, bytes, 0);
    copy_async(t, first.get(), source.get(), bytes, CONCORD_COPY_HOST_TO_DEVICE, stream.get());
    copy_async(t, second.get(), first.get(), bytes, CONCORD_COPY_DEVICE_TO_DEVICE, stream.get());
    copy_async(t, target.get(), second.get(), bytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
    synchronize(t, stream.get());
    require_equal(t, Bytes(target.get(), target.get() + bytes), wanted, "memory.copy_on_stream");
    first.read("first");
    second.read("second");
    CHECK(target.get()[bytes] == 0, "memory.copy_on_stream wrote more than %lld bytes", static_cast<long long>(bytes));
  }
}

void fills_set_every_byte(Context& t) {
  for (const int64_t bytes : kSizes) {
    for (const int value : {0, 0x5a, 0x1ff, -2}) {
      Guarded memory(t, bytes, 3);
      fill(t, memory.get(), value, bytes, t.stream());
      synchronize(t, t.stream());
      const auto low = static_cast<uint8_t>(value);
      CHECK(all_are(memory.read("filled"), low),
            "memory.fill_on_stream of %lld bytes with %d did not set them all to %d", static_cast<long long>(bytes),
            value, low);
    }
  }
}

// Reading pages that were never written costs no memory on most systems, so only the target is really there.
void copies_beyond_two_gigabytes(Context& t) {
  const concord_memory_table& m = t.memory();
  constexpr int64_t kTwoGiB = int64_t{1} << 31;
  constexpr int64_t kBytes = kTwoGiB + 4096 + 3;
  int64_t free = 0;
  int64_t total = 0;
  CHECK_OK(m.info(m.self, t.device(), &free, &total));
  if (free < 3 * kTwoGiB)
    t.skip_here(text("needs 6 GiB of free device memory, found %lld bytes", static_cast<long long>(free)));
  DeviceMemory source(t, kBytes);
  DeviceMemory target(t, kBytes);
  const Bytes mark = pattern(8192, 3);
  const int64_t places[] = {0, kTwoGiB - 8192, kBytes - 8192};
  for (const int64_t place : places) source.write(mark.data(), 8192, place);
  for (const bool queued : {false, true}) {
    for (const int64_t place : places) target.write(Bytes(8192, 0).data(), 8192, place);
    if (queued) {
      copy_async(t, target.get(), source.get(), kBytes, CONCORD_COPY_DEVICE_TO_DEVICE, t.stream());
      synchronize(t, t.stream());
    } else {
      CHECK_OK(m.copy(m.self, target.get(), source.get(), kBytes, CONCORD_COPY_DEVICE_TO_DEVICE));
    }
    const Bytes wanted = source.read(8192, kBytes - 8192);
    require_equal(t, target.read(8192, kBytes - 8192), wanted, "the end of a copy of more than 2 GiB");
    require_equal(t, target.read(8192, 0), source.read(8192, 0), "the start of a copy of more than 2 GiB");
  }
  fill(t, target.get(), 77, kBytes, t.stream());
  synchronize(t, t.stream());
  CHECK(all_are(target.read(8192, kBytes - 8192), 77), "the end of a fill of more than 2 GiB was not set");
}

void queued_work_waits_its_turn(Context& t) {
  constexpr int64_t kBytes = 1 << 16;
  Stream stream(t);
  DeviceMemory memory(t, kBytes);
  HostMemory early(t, kBytes);
  fill(t, memory.get(), 1, kBytes, stream.get());
  copy_async(t, early.get(), memory.get(), kBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  synchronize(t, stream.get());
  Gate gate(t, stream.get());
  fill(t, memory.get(), 2, kBytes, stream.get());
  copy_async(t, early.get(), memory.get(), kBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  gate.require_closed("fill_on_stream or copy_on_stream");
  if (gate.holds()) {
    linger();
    CHECK(early.get()[0] == 1, "a queued copy ran before the work queued before it");
    CHECK(memory.read(1)[0] == 1, "a queued fill ran before the work queued before it");
  }
  gate.open();
  synchronize(t, stream.get());
  CHECK(early.get()[0] == 2 && early.get()[kBytes - 1] == 2, "a queued copy did not see the work queued before it");
}

void queued_copies_read_late(Context& t) {
  constexpr int64_t kBytes = 1 << 16;
  Stream stream(t);
  DeviceMemory memory(t, kBytes);
  HostMemory source(t, kBytes);
  copy_async(t, memory.get(), source.get(), kBytes, CONCORD_COPY_HOST_TO_DEVICE, stream.get());
  synchronize(t, stream.get());
  Gate gate(t, stream.get());
  if (!gate.holds()) t.skip_unsupported("needs stream.host_functions");
  copy_async(t, memory.get(), source.get(), kBytes, CONCORD_COPY_HOST_TO_DEVICE, stream.get());
  std::memset(source.get(), 9, kBytes);  // the buffer belongs to the stream's turn, not to the call
  gate.open();
  synchronize(t, stream.get());
  CHECK(all_are(memory.read(), 9), "a queued copy from pinned memory read it too early");
}

concord_pointer_info describe(Context& t, const void* pointer) {
  concord_pointer_info info{};
  info.struct_size = sizeof info;
  info.device = 1234;
  info.reserved = 1234;
  CHECK_OK(t.memory().describe_pointer(t.memory().self, pointer, &info));
  CHECK(info.reserved == 0, "memory.describe_pointer wrote %d into a reserved field", info.reserved);
  return info;
}

void pointers_are_known(Context& t) {
  DeviceMemory device(t, 1000);
  HostMemory host(t, 1000);
  Bytes ordinary(1000);
  for (const int64_t offset : {0, 1, 500, 999}) {
    const concord_pointer_info on_device = describe(t, device.at(offset));
    CHECK(on_device.kind == CONCORD_MEMORY_DEVICE && on_device.device == t.device(),
          "byte %lld of device memory is of kind %d on device %d", static_cast<long long>(offset), on_device.kind,
          on_device.device);
    const concord_pointer_info pinned = describe(t, host.get() + offset);
    CHECK(pinned.kind == CONCORD_MEMORY_PINNED_HOST && pinned.device == -1,
          "byte %lld of pinned memory is of kind %d on device %d", static_cast<long long>(offset), pinned.kind,
          pinned.device);
  }
  for (const void* pointer : {static_cast<const void*>(ordinary.data()), static_cast<const void*>(nullptr)}) {
    const concord_pointer_info unknown = describe(t, pointer);
    CHECK(unknown.kind == CONCORD_MEMORY_UNKNOWN && unknown.device == -1, "ordinary memory is of kind %d on device %d",
          unknown.kind, unknown.device);
  }
}

void foreign_pointers_are_not_released(Context& t) {
  auto ordinary = std::make_unique<Bytes>(4096);
  CHECK_STATUS(CONCORD_STATUS_INVALID_ARGUMENT, t.memory().release(t.memory().self, t.device(), ordinary->data()));
}

void stream_ordered_memory_works(Context& t) {
  const concord_memory_table& m = t.memory();
  constexpr int64_t kBytes = 100000;
  Stream stream(t);
  HostMemory out(t, kBytes);
  for (int i = 0; i < 20; ++i) {
    void* pointer = nullptr;
    CHECK_OK(m.allocate_on_stream(m.self, t.device(), kBytes, stream.get(), &pointer));
    CHECK(pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 64 == 0, "allocate_on_stream returned %p",
          pointer);
    fill(t, pointer, i, kBytes, stream.get());
    copy_async(t, out.get(), pointer, kBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
    CHECK_OK(m.release_on_stream(m.self, t.device(), pointer, stream.get()));
    synchronize(t, stream.get());
    CHECK(all_are(Bytes(out.get(), out.get() + kBytes), static_cast<uint8_t>(i)),
          "stream-ordered memory lost its contents");
  }
}

// The memory is released by a stream that is held back, so it is still in use; an allocation made now must get other
// bytes.
void stream_ordered_release_waits(Context& t) {
  const concord_memory_table& m = t.memory();
  constexpr int64_t kBytes = 1 << 16;
  Stream stream(t);
  HostMemory out(t, kBytes);
  void* pointer = nullptr;
  CHECK_OK(m.allocate_on_stream(m.self, t.device(), kBytes, stream.get(), &pointer));
  fill(t, pointer, 1, kBytes, stream.get());
  copy_async(t, out.get(), pointer, kBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  synchronize(t, stream.get());
  Stream other(t);
  fill(t, pointer, 5, kBytes, other.get());
  synchronize(t, other.get());
  Gate gate(t, stream.get());
  copy_async(t, out.get(), pointer, kBytes, CONCORD_COPY_DEVICE_TO_HOST, stream.get());
  CHECK_OK(m.release_on_stream(m.self, t.device(), pointer, stream.get()));
  gate.require_closed("release_on_stream");
  std::vector<void*> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(nullptr);
    CHECK_OK(m.allocate_on_stream(m.self, t.device(), kBytes, other.get(), &others.back()));
    fill(t, others.back(), 200, kBytes, other.get());
  }
  synchronize(t, other.get());
  gate.open();
  synchronize(t, stream.get());
  for (void* block : others) CHECK_OK(m.release_on_stream(m.self, t.device(), block, other.get()));
  synchronize(t, other.get());
  CHECK(all_are(Bytes(out.get(), out.get() + kBytes), 5), "memory was reused before its stream had released it");
}

void peer_copies_work(Context& t) {
  if (t.device_count() < 2) t.skip_here(text("needs two devices, found %d", t.device_count()));
  constexpr int64_t kBytes = 12345;
  DeviceMemory from(t, kBytes, 0);
  DeviceMemory to(t, kBytes, 1);
  from.write(pattern(kBytes, 8));
  to.write(Bytes(kBytes, 0));
  CHECK_OK(t.memory().copy_peer_on_stream(t.memory().self, to.get(), 1, from.get(), 0, kBytes, t.stream()));
  synchronize(t, t.stream());
  require_equal(t, to.read(), pattern(kBytes, 8), "memory.copy_peer_on_stream");
}

void threads_share_the_table(Context& t) {
  run_threads(4, [&](int thread) {
    for (int i = 0; i < (t.quick() ? 50 : 300); ++i) {
      const int64_t bytes = 100 + 997 * ((i + thread) % 40);
      DeviceMemory memory(t, bytes);
      const Bytes wanted = pattern(bytes, static_cast<uint32_t>(thread * 1000 + i));
      memory.write(wanted);
      require_equal(t, memory.read(), wanted, "memory of one of four threads");
    }
  });
}

}  // namespace

void add_memory_tests(Registry& registry) {
  registry.add({"memory", "AllocationsAreAlignedAndApart", allocations_are_apart});
  registry.add({"memory", "ZeroBytesAreFineEverywhere", zero_bytes_are_fine});
  registry.add({"memory", "OutOfMemoryIsSaidAndLeavesTheRestUsable", out_of_memory_is_said});
  registry.add({"memory", "InfoCountsFreeAndTotalBytes", info_counts_bytes});
  registry.add({"memory", "CopiesMoveEveryByteAndNoOther", copies_move_every_byte});
  registry.add({"memory", "HostCopiesMoveEveryByte", host_copies_move_every_byte});
  registry.add({"memory", "QueuedCopiesMoveEveryByteAndNoOther", queued_copies_move_every_byte});
  registry.add({"memory", "FillsSetEveryByteAndNoOther", fills_set_every_byte});
  registry.add({"memory", "QueuedCopiesAndFillsWaitTheirTurn", queued_work_waits_its_turn});
  registry.add({"memory",
                "QueuedCopiesReadPinnedMemoryAtTheirTurn",
                queued_copies_read_late,
                {CONCORD_CAP_STREAM_HOST_FUNCTIONS}});
  registry.add({"memory", "PointersAreDescribed", pointers_are_known});
  registry.add({"memory", "ForeignPointersAreNotReleased", foreign_pointers_are_not_released});
  registry.add({"memory",
                "StreamOrderedMemoryKeepsItsContents",
                stream_ordered_memory_works,
                {CONCORD_CAP_MEMORY_STREAM_ORDERED}});
  registry.add({"memory",
                "StreamOrderedReleaseWaitsForItsStream",
                stream_ordered_release_waits,
                {CONCORD_CAP_MEMORY_STREAM_ORDERED}});
  registry.add({"memory", "CopiesBetweenDevicesMoveEveryByte", peer_copies_work, {CONCORD_CAP_MEMORY_PEER_COPY}});
  registry.add({"memory", "FourThreadsUseTheTableAtOnce", threads_share_the_table});
  registry.add({"memory", "WrongArgumentsAreRefused", [](Context& t) { require_refused(t, memory_refusals(t)); }});
  Test huge{"memory", "CopiesAndFillsBeyondTwoGigabytesAreWhole", copies_beyond_two_gigabytes};
  huge.cost = Cost::kFull;
  huge.deadline_s = 180;
  registry.add(huge);
}

}  // namespace concord::conformance
