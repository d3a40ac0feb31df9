// When a communicator counts as stuck: the guard's ticks with times of the test's choice, on the fake CUDA and NCCL.
#include "backends/cuda/nccl/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>
#include <thread>

#include "backends/cuda/fake/stream.h"
#include "backends/cuda/status.h"

namespace concord::cuda {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr auto kTimeout = seconds(100);

const concord_host* host() {
  static const concord_host value = {
      {sizeof(concord_host), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
      nullptr,
      [](void*, const char*) {},
      [](void*, concord_log_level, const char*) {},
      [](void*, const char* name) { return std::string(name) == "cuda.nccl" ? FAKE_NCCL_PATH : nullptr; },
  };
  return &value;
}

// A communicator of one rank that no guard knows, and a stream whose work waits for open().
class Stuck : public testing::Test {
 protected:
  Stuck() {
    sdk::host_slot() = host();
    nccl_ = load_nccl();
    ncclUniqueId id;
    check_nccl(nccl_, nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
    communicator_ = Communicator::join(nccl_, 0, 1, 0, id, {.name = "watched", .timeout_ms = 100'000});
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~Stuck() override {
    cudaDeviceSynchronize();  // the work waits for this object's gate
    cudaStreamDestroy(stream_);
  }

  // Queues work that waits for one open(), and an operation after it.
  void queue_gated() {
    const auto wait = [](void* gate) { static_cast<std::counting_semaphore<>*>(gate)->acquire(); };
    check_cuda(cudaLaunchHostFunc(stream_, wait, &gate_), "cudaLaunchHostFunc");
    communicator_->enqueue("ncclAllReduce", reinterpret_cast<concord_stream>(stream_), [&](ncclComm_t comm) {
      return nccl_.ncclAllReduce(&word_, &word_, 1, ncclInt32, ncclSum, comm, stream_);
    });
  }
  void open(int times) { gate_.release(times); }
  // Lets |times| gated pieces of work through, and waits until |mark| was reached.
  void pass(int times, cudaEvent_t mark) {
    open(times);
    check_cuda(cudaEventSynchronize(mark), "cudaEventSynchronize");
  }
  cudaEvent_t mark() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check_cuda(cudaEventRecord(event, stream_), "cudaEventRecord");
    return event;
  }
  concord_status status() { return communicator_->error(&detail_); }

  Nccl nccl_;
  std::unique_ptr<Communicator> communicator_;
  cudaStream_t stream_ = nullptr;
  std::counting_semaphore<> gate_{0};
  int32_t word_ = 0;
  std::string detail_;
  const Clock::time_point start_ = Clock::now();
};

TEST_F(Stuck, AnOperationThatIsNotReachedForTheTimeoutIsATimeout) {
  queue_gated();
  communicator_->tick(start_);
  communicator_->tick(start_ + kTimeout);
  EXPECT_EQ(status(), CONCORD_STATUS_OK) << "not more than the timeout yet";
  communicator_->tick(start_ + kTimeout + seconds(1));
  EXPECT_EQ(status(), CONCORD_STATUS_TIMEOUT);
  EXPECT_THAT(detail_, HasSubstr("communicator 'watched', rank 0 of 1: an operation made no progress for 100000 ms"));
  open(1);
}

TEST_F(Stuck, TheTimeIsCountedFromTheLastProgressAndNotFromTheQueueing) {
  queue_gated();
  communicator_->tick(start_);
  const cudaEvent_t first = mark();  // after the mark of the tick
  queue_gated();
  communicator_->tick(start_ + seconds(1));
  pass(1, first);
  communicator_->tick(start_ + seconds(90));  // sees the first one reached
  communicator_->tick(start_ + seconds(180));
  EXPECT_EQ(status(), CONCORD_STATUS_OK) << "queued 179 s ago, but something was reached 90 s ago";
  communicator_->tick(start_ + seconds(191));
  EXPECT_EQ(status(), CONCORD_STATUS_TIMEOUT);
  open(1);
}

TEST_F(Stuck, NothingQueuedIsNeverATimeout) {
  queue_gated();
  open(1);
  communicator_->tick(start_);
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  communicator_->tick(start_ + seconds(1));
  communicator_->tick(start_ + 50 * kTimeout);
  EXPECT_EQ(status(), CONCORD_STATUS_OK);
}

TEST_F(Stuck, AStreamThatIsDestroyedIsStillWatchedAndNotTouched) {
  queue_gated();
  communicator_->forget(reinterpret_cast<concord_stream>(stream_));
  const cudaEvent_t end = mark();
  check_cuda(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const auto now = Clock::now();
  communicator_->tick(now);
  communicator_->tick(now + kTimeout + seconds(1));
  EXPECT_EQ(status(), CONCORD_STATUS_TIMEOUT);
  pass(1, end);
}

// Behind a stuck operation a stream's queue fills up, and then the tick's own call does not come back.
TEST_F(Stuck, AFullQueueThatHoldsTheTickIsATimeoutAllTheSame) {
  queue_gated();
  char filled = 0;
  for (int queued = 1; queued < fake::kQueueLength; ++queued) {  // the operation is queued already, the gate is running
    check_cuda(cudaMemsetAsync(&filled, 1, 1, stream_), "cudaMemsetAsync");
  }
  std::atomic<bool> ticked{false};
  std::thread ticker([&] {
    communicator_->tick(start_);
    ticked = true;
  });
  const auto limit = Clock::now() + seconds(60);  // only ends a hang
  while (status() == CONCORD_STATUS_OK && Clock::now() < limit) communicator_->watch(start_ + kTimeout + seconds(1));
  EXPECT_EQ(status(), CONCORD_STATUS_TIMEOUT);
  EXPECT_FALSE(ticked) << "the queue was not full";
  open(1);
  ticker.join();
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

TEST_F(Stuck, ACapturingStreamIsLeftAloneUntilItsEnd) {
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  queue_gated();
  communicator_->tick(start_);
  communicator_->tick(start_ + 2 * kTimeout);
  EXPECT_EQ(status(), CONCORD_STATUS_OK);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
  check_cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  communicator_->tick(start_ + 3 * kTimeout);
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  communicator_->tick(start_ + 3 * kTimeout + seconds(1));
  communicator_->tick(start_ + 9 * kTimeout);
  EXPECT_EQ(status(), CONCORD_STATUS_OK);
}

}  // namespace
}  // namespace concord::cuda
