// Detects spikes in the losses and gradient norms of steps. A pure value; needs no libtorch. Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

namespace concord {

// Compares values with the median of the last kSize ones, which an accepted spike hardly changes, unlike mean and
// maximum.
class SpikeWindow {
 public:
  static constexpr size_t kSize = 100;
  static constexpr size_t kMinValues = 10;  // with fewer values in the window nothing is a spike

  explicit SpikeWindow(double factor) : factor_(factor) {}  // 0: disabled

  bool is_spike(double value) const;
  void add(double value);

 private:
  double factor_;
  std::vector<double> values_;  // ring buffer
  size_t next_ = 0;
};

}  // namespace concord
