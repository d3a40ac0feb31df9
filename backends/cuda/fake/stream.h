// Streams of the fake runtime: a thread and a queue each.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fake {

using Work = std::function<void()>;

inline constexpr int kQueueLength = 1024;  // about CUDA's own

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> start();

  // Queues |work|, or takes it down while a capture is on. Waits: while the queue is full, as CUDA does.
  void push(Work work);
  void wait_idle();
  bool idle();
  // The thread ends when the queue is empty.
  void close();

  void begin_capture();
  // Something was done that cannot be captured: the end will fail. True if a capture is on.
  bool spoil_capture();
  // False if it was invalidated.
  bool end_capture(std::vector<Work>* out_work);
  bool capturing();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false;
  bool closed_ = false;
  bool capturing_ = false;
  bool spoilt_ = false;
  std::vector<Work> captured_;
};

// Queues |work| on a stream handle of the fake runtime; kernel launches are implemented by it.
[[gnu::visibility("default")]] cudaError_t push_work(cudaStream_t stream, Work work);

}  // namespace fake
