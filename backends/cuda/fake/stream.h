// Streams of the fake runtime; each has a thread and a queue.
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

inline constexpr int kQueueLength = 1024;  // about the length of CUDA's

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  static std::shared_ptr<Stream> start();

  // Queues |work|, or records it during a capture. Waits: while the queue is full, like CUDA.
  void push(Work work);
  void wait_idle();
  bool idle();
  // Makes the thread exit when the queue is empty.
  void close();

  void begin_capture();
  // Invalidates the capture in progress, so that end_capture() fails; returns false if there is no capture.
  bool spoil_capture();
  // Returns false if the capture was invalidated.
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
