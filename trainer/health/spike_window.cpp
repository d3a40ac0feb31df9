#include "trainer/health/spike_window.h"

#include <algorithm>

namespace concord {

bool SpikeWindow::is_spike(double value) const {
  if (factor_ <= 0 || values_.size() < kMinValues) return false;
  std::vector<double> sorted = values_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return value > factor_ * *middle;
}

void SpikeWindow::add(double value) {
  if (values_.size() < kSize) {
    values_.push_back(value);
  } else {
    values_[next_] = value;
    next_ = (next_ + 1) % kSize;
  }
}

}  // namespace concord
