// Whether a number is far above those before it: the losses and gradient norms of steps. A pure value; needs no
// libtorch. Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

namespace concord {

// Of the last kSize values. Their median, not their mean or maximum: a spike that was accepted hardly moves it.
class SpikeWindow {
 public:
  static constexpr size_t kSize = 100;
  static constexpr size_t kLeast = 10;  // values; before that nothing is a spike

  explicit SpikeWindow(double factor) : factor_(factor) {}  // 0: nothing ever is

  bool is_spike(double value) const;
  void add(double value);

 private:
  double factor_;
  std::vector<double> values_;  // a ring
  size_t next_ = 0;
};

}  // namespace concord
