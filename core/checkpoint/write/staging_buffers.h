// Double-buffered pinned staging for the device-to-host copies of a save. Threads: one at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "core/checkpoint/write/save_chunks.h"
#include "platform/cpp/event.hpp"
#include "platform/cpp/memory.hpp"
#include "platform/cpp/stream.hpp"

namespace concord {

class PinnedStagingBuffers {
 public:
  // Copies start after |copied|, when the chunks are complete. Chunks have at most |chunk_bytes|.
  PinnedStagingBuffers(const Device& device, const Event& copied, int64_t chunk_bytes)
      : stream_(device), slots_{Slot(device, chunk_bytes), Slot(device, chunk_bytes)} {
    copied.make_wait(stream_);
  }
  // Waits: for copies in flight, left by an abandoned save, which write into the buffers.
  ~PinnedStagingBuffers() {
    try {
      stream_.synchronize();
    } catch (const Error&) {
      // The device has failed; the code that waits for its work reports it.
    }
  }
  PinnedStagingBuffers(const PinnedStagingBuffers&) = delete;
  PinnedStagingBuffers& operator=(const PinnedStagingBuffers&) = delete;
  // Returns the number of copies in flight: at most two.
  int64_t under_way() const { return begun_ - finished_; }
  // Never waits.
  void begin(const SaveChunk& chunk) {
    const Slot& slot = slots_[begun_++ % 2];
    copy(stream_, slot.buffer.data(), chunk.data, chunk.bytes, CopyKind::kDeviceToHost);
    slot.filled.record(stream_);
  }
  // Returns the bytes of the oldest copy, valid until the next begin(). Waits: until the copy is done.
  const std::byte* finish() {
    const Slot& slot = slots_[finished_++ % 2];
    // Polls: a thread that waits inside the device's library may contend with the one that launches kernels.
    while (!slot.filled.done()) std::this_thread::sleep_for(kPoll);
    slot.filled.synchronize();
    return static_cast<const std::byte*>(slot.buffer.data());
  }

 private:
  static constexpr auto kPoll = std::chrono::microseconds(200);

  struct Slot {
    Slot(const Device& device, int64_t bytes) : buffer(device.platform(), bytes), filled(device) {}
    HostBuffer buffer;
    Event filled;
  };

  Stream stream_;
  std::array<Slot, 2> slots_;
  int64_t begun_ = 0;
  int64_t finished_ = 0;
};

}  // namespace concord
