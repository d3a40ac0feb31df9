#include "backends/ascend/sim/runtime/queue.h"

#include <random>
#include <utility>

#include "backends/ascend/sim/runtime/settings.h"
#include "backends/ascend/sim/runtime/work_observer.h"

namespace concord::ascend::sim {
namespace {

// The delay that CONCORD_SIM_NPU_JITTER puts before a task, from a fixed seed for each queue.
std::chrono::microseconds next_jitter() {
  const auto most = settings().jitter.count();
  if (most == 0) return {};
  thread_local std::minstd_rand generator(1);
  return std::chrono::microseconds(static_cast<int64_t>(generator()) % (most + 1));
}

}  // namespace

uint64_t Queue::push(Task task) {
  const std::lock_guard lock(mutex_);
  if (failure_ && stop_on_failure_.load()) throw Error(*failure_);
  try {
    return tasks_->push(cpu::Task([self = shared_from_this(), aborts = aborts_.load(),
                                   held = std::make_unique<Task>(std::move(task))] { self->run(*held, aborts); }));
  } catch (const sdk::Failure& failure) {
    fail(abi::kRtNoStreamResource, failure.what());
  }
}

void Queue::run(Task& task, uint64_t aborts) {
  {
    const std::lock_guard lock(mutex_);
    if (dropped(aborts) || (failure_ && stop_on_failure_.load())) return;
    stop_running_ = task.stop;
  }
  try {
    Faults::sleep(task.fault.delay + next_jitter());
    if (task.fault.code != 0) fail(task.fault.code, text("injected failure of %s on its stream", task.name));
    const WorkScope scope(tasks_->device(), stream_);
    task.run();
  } catch (...) {
    note_failure(aborts, current_error());
  }
  const std::lock_guard lock(mutex_);
  stop_running_ = nullptr;
}

// An error caused by an abort is not a failure of the stream.
void Queue::note_failure(uint64_t aborts, const Error& error) {
  const std::lock_guard lock(mutex_);
  if (dropped(aborts) || failure_) return;
  failure_ = error;
  failed_.store(true);
}

void Queue::throw_failure() {
  if (!failed_.load()) return;
  const std::lock_guard lock(mutex_);
  if (!failure_) return;
  const Error error = *failure_;
  if (!stop_on_failure_.load()) {
    failure_.reset();
    failed_.store(false);
  }
  throw Error(error);
}

void Queue::synchronize(uint64_t ticket, int32_t timeout_ms, abi::aclError timeout_code) {
  const uint64_t aborts = aborts_.load();
  const auto deadline = timeout_ms < 0 ? cpu::kNever : Clock::now() + std::chrono::milliseconds(timeout_ms);
  const bool in_time = tasks_->wait_until(deadline, [&] { return reached(ticket) || dropped(aborts); });
  if (dropped(aborts)) fail(abort_code_.load(), "the stream was aborted while the host waited for it");
  if (!in_time) fail(timeout_code, text("the work was not done within %d ms", timeout_ms));
  throw_failure();
}

bool Queue::wait_for(uint64_t ticket, const std::atomic<bool>& given_up, Clock::time_point deadline) {
  return tasks_->wait_until(deadline, [&] { return reached(ticket) || given_up.load(); });
}

void Queue::abort(abi::aclError code) {
  std::function<void()> stop;
  {
    const std::lock_guard lock(mutex_);
    abort_code_.store(code);
    aborts_.fetch_add(1);
    stop = stop_running_;
    failure_.reset();
    failed_.store(false);
  }
  if (stop) stop();
  wake();
}

}  // namespace concord::ascend::sim
