#include "platform/layers/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "platform/loader/error.h"
#include "tests/abi/sample_tables.h"

namespace concord::layers {
namespace {

using sample::Answer;
using sample::call;
using testing::AllOf;
using testing::HasSubstr;

// Events that are done when the test says so, and functions on streams that run immediately.
struct Gate {
  static inline bool open = true;
  static concord_status query(void*, concord_event, int32_t* out_done) {
    *out_done = open ? 1 : 0;
    return CONCORD_STATUS_OK;
  }
  static concord_status launch_host(void*, concord_stream, concord_host_function function, void* user) {
    function(user);
    return CONCORD_STATUS_OK;
  }
};

class ValidateLayer : public testing::Test {
 protected:
  ValidateLayer() {
    loader::Tables below = sample::tables_of(plugin_);
    below.event.query = &Gate::query;
    below.stream.launch_host = &Gate::launch_host;
    below.memory.allocate_on_stream = [](void* self, int32_t, int64_t bytes, concord_stream, void** out) {
      return sdk::Slot<&sample::MemoryTable::allocate_host>::call(self, bytes, out);
    };
    below.memory.release_on_stream = [](void* self, int32_t, void* pointer, concord_stream) {
      return sdk::Slot<&sample::MemoryTable::release_host>::call(self, pointer);
    };
    below.memory.copy_peer_on_stream = [](void*, void*, int32_t, const void*, int32_t, int64_t, concord_stream) {
      return CONCORD_STATUS_OK;
    };
    below_ = below;
    build({});
    Gate::open = true;
  }

  void build(ValidateSettings settings) {
    layer_ = std::make_unique<Validate>(below_, settings);
    tables_ = interpose(layer_.get());
  }

  // Makes the call and expects INVALID_ARGUMENT with |words|.
  template <auto Member, class... Arguments>
  void refused(const std::string& words, Arguments... arguments) {
    const Answer answer = call<Member>(tables_, arguments...);
    EXPECT_EQ(answer.status, CONCORD_STATUS_INVALID_ARGUMENT) << words;
    EXPECT_THAT(answer.detail, HasSubstr(words));
  }
  template <auto Member, class... Arguments>
  void accepted(Arguments... arguments) {
    const Answer answer = call<Member>(tables_, arguments...);
    EXPECT_EQ(answer.status, CONCORD_STATUS_OK) << answer.detail;
  }

  concord_stream stream(int32_t device = 0) {
    concord_stream made = nullptr;
    accepted<&concord_stream_table::create>(device, 0, &made);
    return made;
  }
  concord_event event(int32_t device = 0, uint32_t flags = 0) {
    concord_event made = nullptr;
    accepted<&concord_event_table::create>(device, flags, &made);
    return made;
  }
  void* memory(int64_t bytes, int32_t device = 0) {
    void* made = nullptr;
    accepted<&concord_memory_table::allocate>(device, bytes, &made);
    return made;
  }
  void* host_memory(int64_t bytes) {
    void* made = nullptr;
    accepted<&concord_memory_table::allocate_host>(bytes, &made);
    return made;
  }
  concord_comm comm(int32_t device = 0) {
    concord_comm made = nullptr;
    const char id[8] = {};
    accepted<&concord_comm_table::init>(device, 1, 0, id, int64_t{8}, nullptr, &made);
    return made;
  }

  sample::Plugin plugin_{{"sample", -1, 2}};
  loader::Tables below_{};
  loader::Tables tables_{};
  std::unique_ptr<Validate> layer_;
};

using Stream = concord_stream_table;
using Event = concord_event_table;
using Mem = concord_memory_table;
using Comm = concord_comm_table;

// ---------------------------------------------------------------------------------------------------- arguments

TEST_F(ValidateLayer, ResultWithoutAPlaceIsRefusedByItsName) {
  refused<&concord_device_table::count>("out_count is null", nullptr);
  refused<&Stream::create>("out_stream is null", 0, 0, nullptr);
  refused<&Mem::info>("out_total is null", 0, reinterpret_cast<int64_t*>(this), nullptr);
}

TEST_F(ValidateLayer, DeviceThatDoesNotExistIsRefusedEverywhere) {
  concord_stream made = nullptr;
  void* pointer = nullptr;
  int32_t can = 0;
  refused<&Stream::create>("device 2 does not exist; there are 2", 2, 0, &made);
  refused<&Mem::allocate>("device -1 does not exist", -1, int64_t{8}, &pointer);
  refused<&concord_device_table::set_current>("device 7 does not exist", 7);
  refused<&concord_device_table::can_access_peer>("device 9 does not exist", 0, 9, &can);
  refused<&Mem::copy_peer_on_stream>("device 5 does not exist", pointer, 0, pointer, 5, int64_t{0}, stream());
}

TEST_F(ValidateLayer, NegativeSizesAndUnknownNumbersAreRefused) {
  char a[8] = {};
  char b[8] = {};
  void* pointer = nullptr;
  refused<&Mem::allocate>("bytes is -1", 0, int64_t{-1}, &pointer);
  refused<&Mem::copy>("copy kind 9 is unknown", a, b, int64_t{8}, 9);
  refused<&Mem::copy>("overlap", a, a + 4, int64_t{8}, CONCORD_COPY_HOST_TO_HOST);
  refused<&Mem::fill_on_stream>("destination is null", nullptr, 0, int64_t{8}, stream());
  refused<&Comm::all_reduce>("dtype 99 is unknown", comm(), a, b, int64_t{1}, 99, CONCORD_REDUCE_SUM, stream());
  refused<&Comm::all_reduce>("reduction 99 is unknown", comm(), a, b, int64_t{1}, CONCORD_DTYPE_I8, 99, stream());
  refused<&Comm::all_reduce>("count is -3", comm(), a, b, int64_t{-3}, CONCORD_DTYPE_I8, CONCORD_REDUCE_SUM, stream());
  refused<&Comm::broadcast>("root is 1", comm(), a, b, int64_t{1}, CONCORD_DTYPE_I8, 1, stream());
  refused<&Comm::supports>("operation 77 is unknown", 77, CONCORD_DTYPE_I8, 0, reinterpret_cast<int32_t*>(a));
  refused<&Stream::launch_host>("function to launch is null", stream(), nullptr, nullptr);
}

TEST_F(ValidateLayer, BadRandomRequestIsRefused) {
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = CONCORD_RNG_BITS;
  request.dtype = CONCORD_DTYPE_F32;
  refused<&concord_rng_table::fill>("no random numbers of kind 1 and dtype f32", &request, stream());
  refused<&concord_rng_table::fill>("request is null", nullptr, stream());
}

TEST_F(ValidateLayer, CommunicatorIsMadeOnlyFromSensibleArguments) {
  concord_comm made = nullptr;
  const char id[8] = {};
  char out[8];
  refused<&Comm::init>("world is 0", 0, 0, 0, id, int64_t{8}, nullptr, &made);
  refused<&Comm::init>("rank is 3", 0, 2, 3, id, int64_t{8}, nullptr, &made);
  refused<&Comm::init>("a unique id of 9 bytes", 0, 1, 0, id, int64_t{9}, nullptr, &made);
  refused<&Comm::unique_id_create>("a unique id of 7 bytes", out, int64_t{7});
  const int32_t ranks[] = {0, 0};
  refused<&Comm::split>("the parent has 1", comm(), ranks, 2, nullptr, &made);
  EXPECT_EQ(made, nullptr);
}

// ----------------------------------------------------------------------------------------------------- lifetime

TEST_F(ValidateLayer, DestroyedStreamIsRefusedWithWhenAndByWhom) {
  const concord_stream gone = stream();
  accepted<&Stream::destroy>(gone);
  const Answer answer = call<&Stream::synchronize>(tables_, gone);
  EXPECT_EQ(answer.status, CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(answer.detail, testing::MatchesRegex("the stream 0x[0-9a-f]+ was destroyed [-0-9.e]+ s ago by thread "
                                                   "[0-9]+"));
  refused<&Stream::destroy>("was destroyed", gone);
  refused<&Event::record>("was destroyed", event(), gone);
  refused<&Mem::fill_on_stream>("was destroyed", memory(8), 0, int64_t{8}, gone);
}

TEST_F(ValidateLayer, ForeignHandlesAreRefusedWhereOnlyThisPluginMakesThem) {
  auto* wild = reinterpret_cast<concord_stream>(uintptr_t{0x1230});
  refused<&Stream::query>("the stream 0x1230 was not created by this platform", wild, reinterpret_cast<int32_t*>(this));
  refused<&Event::synchronize>("the event 0x1240 was not created", reinterpret_cast<concord_event>(uintptr_t{0x1240}));
  refused<&Comm::abort>("the communicator 0x1250 was not created", reinterpret_cast<concord_comm>(uintptr_t{0x1250}));
  refused<&Event::synchronize>("the event is null", nullptr);
  refused<&Comm::abort>("the communicator is null", nullptr);
}

TEST_F(ValidateLayer, StreamsThatLibtorchMadeAreLetThroughWhereItHasASideOfItsOwn) {
  static const char* const kLibraries[] = {"libtorch_sample.so", nullptr};
  below_.core.torch_libraries = kLibraries;
  build({});
  sample::StreamObject theirs{0};
  auto* borrowed = reinterpret_cast<concord_stream>(&theirs);
  accepted<&Stream::synchronize>(borrowed);
  refused<&Stream::destroy>("was not created by this platform", borrowed);
}

TEST_F(ValidateLayer, NullStreamNeedsThePluginsWord) {
  accepted<&Stream::synchronize>(nullptr);
  below_.core.capability_count = 0;
  build({});
  refused<&Stream::synchronize>("the stream is null, which this plugin does not support", nullptr);
}

TEST_F(ValidateLayer, DestroyedEventAndCommunicatorAreRefused) {
  const concord_event gone_event = event();
  accepted<&Event::destroy>(gone_event);
  refused<&Stream::wait_event>("the event 0x", stream(), gone_event);
  const concord_comm gone_comm = comm();
  accepted<&Comm::destroy>(gone_comm);
  refused<&Comm::barrier>("the communicator 0x", gone_comm, stream());
  refused<&Comm::destroy>("was destroyed", gone_comm);
}

TEST_F(ValidateLayer, HandleWhoseDestructionFailedIsStillAlive) {
  const concord_stream stubborn = stream();
  below_.stream.destroy = [](void*, concord_stream) { return CONCORD_STATUS_INTERNAL; };
  Validate failing(below_, {});
  const loader::Tables tables = interpose(&failing);
  concord_stream made = nullptr;
  ASSERT_EQ(call<&Stream::create>(tables, 0, 0, &made).status, CONCORD_STATUS_OK);
  EXPECT_EQ(call<&Stream::destroy>(tables, made).status, CONCORD_STATUS_INTERNAL);
  EXPECT_EQ(call<&Stream::synchronize>(tables, made).status, CONCORD_STATUS_OK);
  accepted<&Stream::destroy>(stubborn);
}

TEST_F(ValidateLayer, AddressThatIsGivenOutAgainIsAlive) {
  const concord_stream first = stream();
  accepted<&Stream::destroy>(first);
  for (int i = 0; i < 64; ++i) {  // the allocator gives the address back sooner or later
    const concord_stream next = stream();
    accepted<&Stream::synchronize>(next);
    accepted<&Stream::destroy>(next);
  }
}

// ------------------------------------------------------------------------------------------------------- memory

TEST_F(ValidateLayer, RangeThatLeavesItsAllocationIsRefusedWithHowFar) {
  char* block = static_cast<char*>(memory(64));
  accepted<&Mem::fill_on_stream>(block + 16, 0, int64_t{48}, stream());
  refused<&Mem::fill_on_stream>("extends 1 bytes past the end of 64 bytes of memory of device 0", block + 16, 0,
                                int64_t{49}, stream());
  refused<&Comm::all_reduce>("send (0x", comm(), block + 32, block, int64_t{9}, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM,
                             stream());
}

TEST_F(ValidateLayer, ReleasedMemoryIsRefusedWithWhenAndByWhom) {
  char* block = static_cast<char*>(memory(64));
  accepted<&Mem::release>(0, block);
  refused<&Mem::fill_on_stream>("which was released ", block + 8, 0, int64_t{8}, stream());
  refused<&Mem::release>("was already released ", 0, block);
}

TEST_F(ValidateLayer, UnknownMemoryIsLetThroughBecauseItMayBeATensors) {
  char tensor[64] = {};
  accepted<&Mem::fill_on_stream>(tensor, 1, int64_t{64}, stream());
  EXPECT_EQ(tensor[63], 1);
}

TEST_F(ValidateLayer, MemoryIsReleasedTheWayItWasMade) {
  char* block = static_cast<char*>(memory(64));
  void* pinned = host_memory(64);
  refused<&Mem::release>("is not the beginning of", 0, block + 8);
  refused<&Mem::release>("cannot be released on device 1", 1, block);
  refused<&Mem::release_host>("came from allocate and cannot be released as if it came from allocate_host", block);
  refused<&Mem::release>("came from allocate_host", 0, pinned);
  refused<&Mem::release_on_stream>("came from allocate", 0, block, stream());
  refused<&Mem::release>("was not returned by allocate", 0, this);
  accepted<&Mem::release>(0, nullptr);
  accepted<&Mem::release_host>(nullptr);
  accepted<&Mem::release>(0, block);
  accepted<&Mem::release_host>(pinned);
}

TEST_F(ValidateLayer, StreamOrderedMemoryIsReleasedOnceAndOnItsDevice) {
  void* block = nullptr;
  const concord_stream s = stream();
  refused<&Mem::allocate_on_stream>("the stream belongs to device 0, the memory to device 1", 1, int64_t{64}, s,
                                    &block);
  accepted<&Mem::allocate_on_stream>(0, int64_t{64}, s, &block);
  accepted<&Mem::release_on_stream>(0, block, s);
  refused<&Mem::release_on_stream>("was not returned by allocate_on_stream", 0, block, s);
}

TEST_F(ValidateLayer, MemoryThatQueuedWorkStillUsesIsNotReleased) {
  void* block = memory(64);
  const concord_stream s = stream();
  accepted<&Mem::fill_on_stream>(block, 0, int64_t{64}, s);
  Gate::open = false;
  refused<&Mem::release>("is released while memory.fill_on_stream queued on stream 0x", 0, block);
  Gate::open = true;
  accepted<&Mem::release>(0, block);
}

TEST_F(ValidateLayer, CopiesTakeHostAndDeviceMemoryAsTheirKindSays) {
  void* device = memory(64);
  void* pinned = host_memory(64);
  accepted<&Mem::copy>(device, pinned, int64_t{64}, CONCORD_COPY_HOST_TO_DEVICE);
  refused<&Mem::copy>("destination must be host memory here", device, pinned, int64_t{64}, CONCORD_COPY_HOST_TO_HOST);
  refused<&Mem::copy>("source must be device memory here, but it is in 64 bytes of pinned host memory", device, pinned,
                      int64_t{64}, CONCORD_COPY_DEVICE_TO_DEVICE);
  refused<&Comm::all_reduce>("recv must be device memory here", comm(), device, pinned, int64_t{4}, CONCORD_DTYPE_F32,
                             CONCORD_REDUCE_SUM, stream());
}

TEST_F(ValidateLayer, QuarantineIsBoundedAndGivenBackWhenMemoryIsCounted) {
  static int released = 0;
  released = 0;
  below_.memory.release = [](void* self, int32_t device, void* pointer) {
    ++released;
    return sdk::Slot<&sample::MemoryTable::release>::call(self, device, pointer);
  };
  build({});
  const int blocks = static_cast<int>(Allocations::kQuarantineBlocks) + 10;
  for (int i = 0; i < blocks; ++i) accepted<&Mem::release>(0, memory(64));
  EXPECT_EQ(released, 10);
  accepted<&Mem::release>(0, memory(Allocations::kQuarantineBytes + 1));
  EXPECT_EQ(released, blocks + 1) << "a block larger than the quarantine empties it and does not stay";
  accepted<&Mem::release>(0, memory(64));
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  accepted<&Mem::info>(0, &free_bytes, &total_bytes);
  EXPECT_EQ(released, blocks + 2);
}

TEST_F(ValidateLayer, FullDeviceGetsTheQuarantineBackBeforeItFails) {
  static bool full = false;
  static int attempts = 0;
  full = false;
  attempts = 0;
  below_.memory.allocate = [](void* self, int32_t device, int64_t bytes, void** out) {
    ++attempts;
    if (full) return concord_status{CONCORD_STATUS_OUT_OF_MEMORY};
    return sdk::Slot<&sample::MemoryTable::allocate>::call(self, device, bytes, out);
  };
  below_.memory.release = [](void* self, int32_t device, void* pointer) {
    full = false;
    return sdk::Slot<&sample::MemoryTable::release>::call(self, device, pointer);
  };
  build({});
  accepted<&Mem::release>(0, memory(64));
  full = true;
  accepted<&Mem::release>(0, memory(64));
  EXPECT_EQ(attempts, 3);
}

// ------------------------------------------------------------------------------------------------------ devices

TEST_F(ValidateLayer, StreamsEventsCommunicatorsAndBuffersOfDifferentDevicesDoNotMix) {
  const concord_stream other = stream(1);
  refused<&Event::record>("the stream belongs to device 1, the event to device 0", event(0), other);
  refused<&Comm::barrier>("the stream belongs to device 1, the communicator to device 0", comm(0), other);
  refused<&Mem::fill_on_stream>("destination must be on device 1, but it is in 64 bytes of memory of device 0",
                                memory(64, 0), 0, int64_t{8}, other);
  void* far = memory(64, 1);
  refused<&Comm::all_reduce>("send must be on device 0", comm(0), far, far, int64_t{4}, CONCORD_DTYPE_F32,
                             CONCORD_REDUCE_SUM, stream(0));
  refused<&Mem::copy_peer_on_stream>("destination must be on device 0", far, 0, memory(64, 1), 1, int64_t{8}, other);
  accepted<&Mem::copy_peer_on_stream>(far, 1, memory(64, 0), 0, int64_t{8}, other);
}

TEST_F(ValidateLayer, ElapsedNeedsTimedAndRecordedEvents) {
  double ms = 0;
  const concord_event timed = event(0, CONCORD_EVENT_TIMING);
  Answer answer = call<&Event::elapsed>(tables_, timed, event(), &ms);
  EXPECT_EQ(answer.status, CONCORD_STATUS_FAILED_PRECONDITION);
  EXPECT_THAT(answer.detail, HasSubstr("start was never recorded"));
  accepted<&Event::record>(timed, stream());
  answer = call<&Event::elapsed>(tables_, timed, event(), &ms);
  EXPECT_THAT(answer.detail, HasSubstr("end was created without CONCORD_EVENT_TIMING"));
  accepted<&Event::elapsed>(timed, timed, &ms);
}

// -------------------------------------------------------------------------------------------------------- order

TEST_F(ValidateLayer, SecondThreadInACommunicatorIsRefused) {
  static std::atomic<bool> inside{false};
  static std::atomic<bool> go_on{false};
  inside = go_on = false;
  below_.comm.barrier = [](void*, concord_comm, concord_stream) {
    inside = true;
    while (!go_on) std::this_thread::yield();
    return concord_status{CONCORD_STATUS_OK};
  };
  build({});
  const concord_comm shared = comm();
  const concord_stream s = stream();
  std::thread first([&] { accepted<&Comm::barrier>(shared, s); });
  while (!inside) std::this_thread::yield();
  char a[8] = {};
  refused<&Comm::all_reduce>("another thread is inside an operation of this communicator", shared, a, a, int64_t{1},
                             CONCORD_DTYPE_I8, CONCORD_REDUCE_SUM, s);
  go_on = true;
  first.join();
  accepted<&Comm::all_reduce>(shared, a, a, int64_t{1}, CONCORD_DTYPE_I8, CONCORD_REDUCE_SUM, s);
}

TEST_F(ValidateLayer, HostFunctionThatCallsThePlatformIsToldOff) {
  struct Seen {
    const loader::Tables* tables;
    Answer answer;
  } seen{&tables_, {}};
  accepted<&Stream::launch_host>(
      stream(),
      [](void* user) {
        auto* s = static_cast<Seen*>(user);
        int32_t count = 0;
        s->answer = call<&concord_device_table::count>(*s->tables, &count);
      },
      &seen);
  EXPECT_EQ(seen.answer.status, CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(seen.answer.detail, HasSubstr("comes from a host function on a stream"));
  accepted<&Stream::synchronize>(nullptr);
}

// -------------------------------------------------------------------------------------------------------- leaks

TEST_F(ValidateLayer, LeaksAreWhatIsStillAlive) {
  EXPECT_EQ(layer_->leaks(), "");
  const concord_stream s = stream();
  event();
  memory(48);
  memory(16);
  EXPECT_EQ(layer_->leaks(), "1 stream, 1 event, 2 allocations of 64 bytes");
  accepted<&Stream::destroy>(s);
  EXPECT_EQ(layer_->leaks(), "1 event, 2 allocations of 64 bytes");
}

TEST(ValidateSettings, KnowLeaksAndNothingElse) {
  EXPECT_FALSE(validate_settings().report_leaks);
  loader::override_config("validate", "leaks");
  EXPECT_TRUE(validate_settings().report_leaks);
  loader::override_config("validate", "everything");
  EXPECT_THROW(validate_settings(), Error);
  loader::override_config("validate", std::nullopt);
}

}  // namespace
}  // namespace concord::layers
