// The C++ face over the tables of a plugin that notes every call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "platform/cpp/concord.hpp"
#include "tests/abi/sample_tables.h"

namespace concord {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string>& calls() {
  static std::vector<std::string> all;
  return all;
}

// A sample whose destructions are noted and whose streams of priority 99 fail.
class NotingStreams : public sample::Streams {
 public:
  concord_stream create(int32_t device, int32_t priority) {
    calls().push_back("stream.create");
    if (priority == 99) sdk::fail(CONCORD_STATUS_OUT_OF_MEMORY, "no more streams");
    return sample::Streams::create(device, priority);
  }
  void destroy(concord_stream stream) {
    calls().push_back("stream.destroy");
    if (fail_destroy) sdk::fail(CONCORD_STATUS_INTERNAL, "it clings to life");
    sample::Streams::destroy(stream);
  }
  bool fail_destroy = false;
};

class NotingMemory : public sample::MemoryTable {
 public:
  void* allocate(int32_t device, int64_t bytes) {
    calls().push_back("allocate");
    return sample::MemoryTable::allocate(device, bytes);
  }
  void release(int32_t device, void* pointer) {
    calls().push_back("release");
    sample::MemoryTable::release(device, pointer);
  }
  void* allocate_on_stream(int32_t device, int64_t bytes, concord_stream) {
    calls().push_back("allocate_on_stream");
    return sample::MemoryTable::allocate(device, bytes);
  }
  void release_on_stream(int32_t device, void* pointer, concord_stream) {
    calls().push_back("release_on_stream");
    sample::MemoryTable::release(device, pointer);
  }
};

class NotingRng {
 public:
  void fill(const concord_rng_request* request, concord_stream) {
    if (request->count < 0) sdk::invalid("count is negative");
    requests.push_back(*request);
  }
  std::vector<concord_rng_request> requests;
};

// A plugin made in the test: no file, the same tables.
class Face : public testing::Test {
 protected:
  Face() {
    plugin_.name = "noting";
    plugin_.tables = sample::tables_of(sample_);
    plugin_.tables.stream = sdk::stream_table(&streams_);
    plugin_.tables.memory = sdk::memory_table(&memory_);
    plugin_.tables.rng = sdk::rng_table(&rng_);
    calls().clear();
  }

  sample::Plugin sample_{{"noting", -1, 4}};
  NotingStreams streams_;
  NotingMemory memory_;
  NotingRng rng_;
  loader::Plugin plugin_{};
  Platform platform_{plugin_};
  Device device_{platform_, 0};
};

TEST_F(Face, FailedCallTellsCallArgumentsPluginStatusAndTheSentence) {
  try {
    Stream(Device(platform_, 3), 99);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), CONCORD_STATUS_OUT_OF_MEMORY);
    EXPECT_EQ(error.call(), "stream.create");
    EXPECT_EQ(error.arguments(), "device=3, priority=99");
    EXPECT_EQ(error.plugin(), "noting");
    EXPECT_EQ(error.detail(), "no more streams");
    EXPECT_STREQ(error.what(),
                 "stream.create(device=3, priority=99) of plugin 'noting' failed with OUT_OF_MEMORY: no more streams");
  }
}

TEST_F(Face, FailureWithoutASentenceSaysSo) {
  plugin_.tables.device.count = [](void*, int32_t*) -> concord_status { return 4711; };
  try {
    platform_.device_count();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), 4711);
    EXPECT_THAT(error.what(), HasSubstr("failed with unknown status 4711: the plugin gave no reason"));
  }
}

TEST_F(Face, ArgumentsThatStandForNamesAppearAsNames) {
  plugin_.tables.comm.all_reduce = [](void*, concord_comm, const void*, void*, int64_t, concord_dtype,
                                      concord_reduce_op,
                                      concord_stream) -> concord_status { return CONCORD_STATUS_PEER_LOST; };
  const Communicator comm(device_, 1, 0, create_unique_id(platform_));
  try {
    comm.all_reduce(Stream::of_device(device_), nullptr, nullptr, 12, DType::kBF16, ReduceOp::kAvg);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.arguments(), HasSubstr("send=null, recv=null, count=12, dtype=bf16, reduce=avg, stream=null"));
  }
}

TEST_F(Face, StreamIsDestroyedOnceThoughItMoves) {
  {
    Stream first(device_);
    Stream second = std::move(first);
    EXPECT_EQ(first.native(), nullptr);
    Stream third(device_);
    third = std::move(second);
    EXPECT_NE(third.native(), nullptr);
  }
  EXPECT_THAT(calls(), ElementsAre("stream.create", "stream.create", "stream.destroy", "stream.destroy"));
}

TEST_F(Face, BorrowedStreamIsLeftAlone) {
  Stream owner(device_);
  {
    const Stream borrowed = Stream::borrow(device_, owner.native());
  }
  {
    const Stream null = Stream::of_device(device_);
  }
  EXPECT_THAT(calls(), ElementsAre("stream.create"));
}

TEST_F(Face, DestructorThatFailsLogsAndDoesNotThrow) {
  streams_.fail_destroy = true;
  testing::internal::CaptureStderr();
  auto stream = std::make_unique<Stream>(device_);
  const concord_stream native = stream->native();
  stream.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("error noting: stream.destroy(stream=0x"), HasSubstr("INTERNAL: it clings to life")));
  streams_.fail_destroy = false;
  streams_.sample::Streams::destroy(native);
}

TEST_F(Face, BuffersAreReleasedOnceTheWayTheyWereMade) {
  {
    Buffer plain(device_, 64);
    const Stream stream = Stream::of_device(device_);
    Buffer ordered(stream, 64);
    plain = std::move(ordered);
    EXPECT_EQ(ordered.data(), nullptr);
    EXPECT_EQ(plain.bytes(), 64);
    const Buffer empty(device_, 0);
    EXPECT_EQ(empty.data(), nullptr);
  }
  EXPECT_THAT(calls(), ElementsAre("allocate", "allocate_on_stream", "release", "allocate", "release_on_stream"));
}

TEST_F(Face, DeviceGuardRestoresWhatWasCurrent) {
  Device(platform_, 1).make_current();
  {
    const DeviceGuard outer(Device(platform_, 2));
    EXPECT_EQ(Device::current(platform_).index(), 2);
    {
      const DeviceGuard inner(Device(platform_, 3));
      EXPECT_EQ(Device::current(platform_).index(), 3);
    }
    EXPECT_EQ(Device::current(platform_).index(), 2);
  }
  EXPECT_EQ(Device::current(platform_).index(), 1);
  EXPECT_THROW(DeviceGuard(Device(platform_, 9)), Error);
  EXPECT_EQ(Device::current(platform_).index(), 1);
}

TEST_F(Face, GeneratorAdvancesByWhatItFilledAndCanBeRestored) {
  const Stream stream = Stream::of_device(device_);
  Generator generator(7, 3);
  int32_t target[8];
  generator.normal(stream, target, 5, DType::kF32, 1.5, 2.5);
  const Generator::State saved = generator.state();
  generator.integers(stream, target, 3, DType::kI64, -4, 9);
  generator.restore(saved);
  generator.uniform(stream, target, 2, DType::kF64, 2, 3);
  EXPECT_EQ(generator.state(), (Generator::State{7, 3, 7}));
  ASSERT_EQ(rng_.requests.size(), 3u);
  EXPECT_EQ(rng_.requests[0].offset, 0u);
  EXPECT_EQ(rng_.requests[0].high, 2.5);
  EXPECT_EQ(rng_.requests[1].offset, 5u);
  EXPECT_EQ(rng_.requests[1].integer_low, -4);
  EXPECT_EQ(rng_.requests[2].offset, 5u);
  EXPECT_EQ(rng_.requests[2].subsequence, 3u);
}

TEST_F(Face, GeneratorStaysWhereItWasWhenAFillFails) {
  Generator generator(7);
  EXPECT_THROW(generator.bits(Stream::of_device(device_), nullptr, -1, DType::kI32), Error);
  EXPECT_EQ(generator.state().offset, 0u);
}

TEST_F(Face, CommunicatorErrorCarriesTheSentence) {
  const Communicator comm(device_, 1, 0, create_unique_id(platform_));
  EXPECT_FALSE(comm.error().has_value());
  plugin_.tables.comm.async_error = [](void*, concord_comm, concord_status* out_error) -> concord_status {
    loader::set_error_detail("rank 3 is gone");
    *out_error = CONCORD_STATUS_PEER_LOST;
    return CONCORD_STATUS_OK;
  };
  ASSERT_TRUE(comm.error().has_value());
  EXPECT_EQ(comm.error()->status, CONCORD_STATUS_PEER_LOST);
  EXPECT_EQ(comm.error()->detail, "rank 3 is gone");
}

TEST_F(Face, EventTimesWorkBetweenItsRecords) {
  const Stream stream(device_);
  const Event start(device_, Timing::kOn);
  const Event end(device_, Timing::kOn);
  start.record(stream);
  end.record(stream);
  end.synchronize();
  EXPECT_TRUE(end.done());
  EXPECT_GE(Event::milliseconds_between(start, end), 0);
}

TEST(Types, EveryNumberHasANameAndASize) {
  for (concord_dtype dtype = 1; dtype <= 10; ++dtype) {
    EXPECT_STRNE(to_string(static_cast<DType>(dtype)), "unknown");
    EXPECT_GT(size_of(static_cast<DType>(dtype)), 0);
  }
  for (concord_comm_op operation = 1; operation <= 9; ++operation) {
    EXPECT_STRNE(to_string(static_cast<CommOp>(operation)), "unknown");
  }
  EXPECT_STREQ(to_string(ReduceOp::kAvg), "avg");
}

}  // namespace
}  // namespace concord
