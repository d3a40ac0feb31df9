#include "backends/ascend/sim/runtime/queue.h"

#include <pthread.h>
#include <signal.h>

#include <random>
#include <system_error>
#include <utility>

#include "backends/ascend/sim/runtime/settings.h"

namespace concord::ascend::sim {
namespace {

// Signals of the process are for its own threads: a handler must not run on this one.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// The delay that CONCORD_SIM_NPU_JITTER puts before a task, from a fixed seed for each queue.
std::chrono::microseconds next_jitter() {
  const auto most = settings().jitter.count();
  if (most == 0) return {};
  thread_local std::minstd_rand generator(1);
  return std::chrono::microseconds(static_cast<int64_t>(generator()) % (most + 1));
}

}  // namespace

uint64_t Queue::push(Task task) {
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ && stop_on_failure_.load()) throw Error(*failure_);
    if (!thread_.joinable()) start();
    waiting_.push_back(std::move(task));
    ticket = pushed_.fetch_add(1) + 1;
  }
  work_.notify_all();
  return ticket;
}

void Queue::start() {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([self = shared_from_this()] { self->run(); });
  } catch (const std::system_error& error) {
    fail(abi::kRtNoStreamResource, text("the host cannot create a thread for a stream: %s", error.what()));
  }
  pthread_setname_np(thread_.native_handle(), text("sim-npu:%d", device_).c_str());
}

void Queue::run() {
  std::vector<Task> batch;
  while (take(batch)) {
    for (Task& task : batch) run_one(task);
    batch.clear();
  }
}

bool Queue::take(std::vector<Task>& batch) {
  work_.wait([this] { return pushed_.load() != done_.load() || closing_.load(); });
  const std::lock_guard lock(mutex_);
  batch.swap(waiting_);
  batch_aborts_ = aborts_.load();
  return !batch.empty() || !closing_.load();
}

void Queue::run_one(Task& task) {
  const uint64_t aborts = batch_aborts_;
  bool drop = false;
  {
    const std::lock_guard lock(mutex_);
    drop = dropped(aborts) || (failure_ && stop_on_failure_.load());
    if (!drop) stop_running_ = task.stop;
  }
  if (!drop) {
    try {
      Faults::sleep(task.fault.delay + next_jitter());
      if (task.fault.code != 0) fail(task.fault.code, text("injected failure of %s on its stream", task.name));
      task.run();
    } catch (...) {
      note_failure(aborts, current_error());
    }
    const std::lock_guard lock(mutex_);
    stop_running_ = nullptr;
  }
  task = Task{};  // what it holds is released before it counts as done
  count_done(1);
}

// What ends because of an abort is not a failure of the stream.
void Queue::note_failure(uint64_t aborts, const Error& error) {
  const std::lock_guard lock(mutex_);
  if (dropped(aborts) || failure_) return;
  failure_ = error;
  failed_.store(true);
}

void Queue::count_done(uint64_t tasks) {
  done_.fetch_add(tasks);
  progress_.notify_all();
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
  const auto deadline =
      timeout_ms < 0 ? Clock::time_point::max() : Clock::now() + std::chrono::milliseconds(timeout_ms);
  const bool in_time = progress_.wait_until(deadline, [&] { return reached(ticket) || dropped(aborts); });
  if (dropped(aborts)) fail(abort_code_.load(), "the stream was aborted while the host waited for it");
  if (!in_time) fail(timeout_code, text("the work was not done within %d ms", timeout_ms));
  throw_failure();
}

bool Queue::wait_for(uint64_t ticket, const std::atomic<bool>& given_up, Clock::time_point deadline) {
  return progress_.wait_until(deadline, [&] { return reached(ticket) || given_up.load(); });
}

void Queue::drain() {
  const uint64_t ticket = pushed();
  progress_.wait([&] { return reached(ticket); });
}

void Queue::abort(abi::aclError code) {
  std::vector<Task> dropped_tasks;
  std::function<void()> stop;
  {
    const std::lock_guard lock(mutex_);
    abort_code_.store(code);
    aborts_.fetch_add(1);
    dropped_tasks.swap(waiting_);
    stop = stop_running_;
    failure_.reset();
    failed_.store(false);
  }
  if (stop) stop();
  const uint64_t count = dropped_tasks.size();
  dropped_tasks.clear();
  count_done(count);
}

void Queue::close() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    thread.swap(thread_);
  }
  if (!thread.joinable()) return;
  const bool idle = reached(pushed());
  closing_.store(true);
  work_.notify_all();
  idle ? thread.join() : thread.detach();
}

}  // namespace concord::ascend::sim
