// A hash of token ids to distinguish data sets: the same on every machine. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace concord {

// Processes eight bytes per multiplication, so that a corpus in memory costs less than a second. Threads: one at a
// time.
class ContentHash {
 public:
  void add(uint64_t value) {
    state_ = (state_ ^ value) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  // Adds the values and their count.
  template <class Integer>
  void add(const Integer* values, size_t count) {
    add(count);
    for (size_t i = 0; i < count; ++i) add(static_cast<uint64_t>(values[i]));
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace concord
