// Where a thread receives chunks of a save that are on a device: two buffers in pinned memory, so that one is filled
// while the other one is read. Threads: one at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "core/models/save_chunks.h"
#include "platform/cpp/event.hpp"
#include "platform/cpp/memory.hpp"
#include "platform/cpp/stream.hpp"

namespace concord {

class Landing {
 public:
  // Copies begin after |copied|: what the chunks point to is complete then.
  Landing(const Device& device, const Event& copied) : stream_(device), slots_{Slot(device), Slot(device)} {
    copied.make_wait(stream_);
  }
  // How many have been begun and not finished: at most two.
  int64_t under_way() const { return begun_ - finished_; }
  // Never waits. |chunk| has at most kChunkBytes.
  void begin(const SaveChunk& chunk) {
    const Slot& slot = slots_[begun_++ % 2];
    copy(stream_, slot.buffer.data(), chunk.data, chunk.bytes, CopyKind::kDeviceToHost);
    slot.filled.record(stream_);
  }
  // The bytes of the oldest one. They stay until the next begin(). Waits: until they are there.
  const std::byte* finish() {
    const Slot& slot = slots_[finished_++ % 2];
    // A thread that waits inside of the device's library may take turns with the one that launches kernels.
    while (!slot.filled.done()) std::this_thread::sleep_for(kPoll);
    slot.filled.synchronize();
    return static_cast<const std::byte*>(slot.buffer.data());
  }

 private:
  static constexpr auto kPoll = std::chrono::microseconds(200);

  struct Slot {
    explicit Slot(const Device& device) : buffer(device.platform(), kChunkBytes), filled(device) {}
    HostBuffer buffer;
    Event filled;
  };

  Stream stream_;
  std::array<Slot, 2> slots_;
  int64_t begun_ = 0;
  int64_t finished_ = 0;
};

}  // namespace concord
