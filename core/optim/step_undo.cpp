#include "core/optim/step_undo.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

namespace concord {

void StepUndo::keep(const std::vector<Segment>& segments) {
  if (live_.empty()) {
    for (const Segment& segment : segments) {
      live_.push_back(segment.weights);
      live_.insert(live_.end(), segment.moments.begin(), segment.moments.end());
    }
    for (const at::Tensor& each : live_) kept_.push_back(at::empty_like(each));
  }
  if (!live_.empty()) at::_foreach_copy_(kept_, live_);
}

void StepUndo::restore() const {
  if (!live_.empty()) at::_foreach_copy_(live_, kept_);
}

}  // namespace concord
