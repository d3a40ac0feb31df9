#include "core/launch/job/restart_policy.h"

namespace concord {

RestartPolicy::Next RestartPolicy::after(const AttemptEnd& end) {
  ++attempts;
  if (end.succeeded) return {};
  if (end.stopped_as_asked) return {.exit_code = 128 + end.stop_signal};
  const bool progressed = end.saved_step > saved_step;
  const bool is_usage = end.exit_code == kExitUsage && end.saved_step < 0;
  failures = progressed ? 1 : failures + 1;
  saved_step = end.saved_step;
  const bool may_restart = end.stop_signal == 0 && end.can_start_again && end.exit_code != kExitBadDevice && !is_usage;
  if (may_restart && failures <= max_restarts) return {.restart = true, .progressed = progressed};
  if (end.exit_code == kExitBadDevice) return {.exit_code = kExitBadDevice, .progressed = progressed};
  if (is_usage && end.stop_signal == 0) return {.exit_code = kExitUsage};
  return {.exit_code = end.kept_step >= 0 ? kExitRequeue : 1, .progressed = progressed};
}

}  // namespace concord
