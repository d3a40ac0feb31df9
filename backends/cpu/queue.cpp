#include "backends/cpu/queue.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "backends/cpu/status.h"

namespace concord::cpu {
namespace {

constexpr size_t kKeptCapacity = 1024;  // what a batch may keep allocated after a burst

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

}  // namespace

uint64_t Queue::push(Task task) {
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
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
    fail_system("starting the thread of a stream", error.code().value());
  }
  pthread_setname_np(thread_.native_handle(), sdk::text("%s:%d", name_, device_).c_str());
}

void Queue::run() {
  std::vector<Task> batch;
  while (take(batch)) {
    for (Task& task : batch) run_one(task);
    batch.clear();
    if (batch.capacity() > kKeptCapacity) batch.shrink_to_fit();
  }
}

// Waits for tasks; false when there are none left and none will come. Only the thread takes, so done_ counts all taken.
bool Queue::take(std::vector<Task>& batch) {
  work_.wait([this] { return pushed_.load() != done_.load() || closing_.load(); });
  const std::lock_guard lock(mutex_);
  batch.swap(waiting_);
  return !batch.empty();
}

void Queue::run_one(Task& task) {
  {
    Task mine = std::move(task);  // destroyed before the task counts as done
    try {
      mine();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = sdk::current_failure();
    }
  }
  done_.fetch_add(1);
  progress_.notify_all();
}

void Queue::wait(uint64_t ticket) {
  progress_.wait([this, ticket] { return reached(ticket); });
}

std::optional<sdk::Failure> Queue::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

std::optional<sdk::Failure> Queue::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
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

}  // namespace concord::cpu
