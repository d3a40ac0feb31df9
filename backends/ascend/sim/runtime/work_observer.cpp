#include "backends/ascend/sim/runtime/work_observer.h"

#include <atomic>
#include <chrono>

#include "backends/ascend/sim/runtime/sim.h"

namespace concord::ascend::sim {
namespace {

std::atomic<concord_sim_work_observer*> observer{nullptr};

struct CurrentScope {
  bool is_on = false;
  int32_t device = 0, stream = 0;
  int64_t begin_ns = 0;
};
thread_local CurrentScope current;

// MSPTI's clock: that of the system.
int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool is_observed() { return observer.load(std::memory_order_acquire) != nullptr; }

}  // namespace

WorkScope::WorkScope(int32_t device, int32_t stream) : is_outer_(!current.is_on) {
  if (!is_observed()) return;
  if (is_outer_) current = {true, device, stream, 0};
  current.begin_ns = now_ns();
}

WorkScope::~WorkScope() {
  if (is_outer_) current.is_on = false;
}

void observe_work(const char* name, int64_t bytes) {
  concord_sim_work_observer* const observe = observer.load(std::memory_order_acquire);
  if (observe == nullptr || !current.is_on) return;
  const int64_t end = now_ns();
  const concord_sim_work work = {name, current.device, current.stream, current.begin_ns, end, bytes};
  current.begin_ns = end;
  observe(&work);
}

}  // namespace concord::ascend::sim

void concord_sim_observe_work(concord_sim_work_observer* observe) {
  concord::ascend::sim::observer.store(observe, std::memory_order_release);
}
