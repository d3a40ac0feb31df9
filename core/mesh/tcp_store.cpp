// connect_store of rendezvous.h: c10d's TCPStore behind our Store. The only file that includes it, since it is slow to
// compile. Sockets are opened here first, because c10d retries a refused connection only after up to a second and does
// not tell a port in use from other failures.
#include <c10/util/Logging.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "core/mesh/rendezvous.h"
#include "core/mesh/sockets.h"
#include "platform/base/thread_safety.hpp"
#include "platform/loader/error.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr std::chrono::microseconds kShortestPause{100};
constexpr Milliseconds kLongestPause{250};
// How long one call, which never waits for another rank, may take: the job's timeout, clamped to these.
constexpr Milliseconds kShortestLimit{5000};
constexpr Milliseconds kLongestLimit{60000};

// Throws Error if the port is not available.
Listener listen_for(const JobEnvironment& job) {
  Listener listener = listen_on(job.master_addr, job.master_port);
  if (listener.socket) return listener;
  const std::string advice = listener.error == EADDRINUSE
                                 ? "another process is listening there: a second process with rank 0, or an earlier "
                                   "job that is still running; stop it, or choose another MASTER_PORT"
                                 : "choose another MASTER_PORT";
  throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("rank 0 cannot serve the job's store at port {}: {}; {}",
                                                      job.master_port, std::strerror(listener.error), advice));
}

// Waits until a process listens at the master's address.
void wait_for_server(const JobEnvironment& job, Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  for (Milliseconds pause{2};; pause = std::min(pause * 3 / 2 + Milliseconds(1), Milliseconds(200))) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    const Milliseconds limit = std::clamp(left, Milliseconds(1), Milliseconds(5000));
    std::string reason;
    if (connect_once(job.master_addr, job.master_port, limit, &reason)) return;
    if (Clock::now() + pause < deadline) {
      std::this_thread::sleep_for(pause);
      continue;
    }
    throw Error(CONCORD_STATUS_TIMEOUT,
                fmt::format("rank {} found no store at {}:{} within {} ms ({}); is rank 0 running there, and do all "
                            "ranks have the same MASTER_ADDR and MASTER_PORT?",
                            job.rank, job.master_addr, job.master_port, timeout.count(), reason));
  }
}

// c10d prints a stack trace for every lost connection; our Error says it in one line. During the lifetime of this
// object c10's log is silent (for all threads; a store call takes microseconds), unless the user has set a log level.
class QuietLog {
 public:
  QuietLog() : before_(level().exchange(kFatal)) {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) level() = before_;
  }
  ~QuietLog() {
    if (before_ != kFatal) level() = before_;
  }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  static constexpr int kFatal = 3;
  static std::atomic_ref<int> level() { return std::atomic_ref<int>(FLAGS_caffe2_log_level); }
  int before_;
};

// Makes the calls of one c10d store, one after the other as c10d does anyway, on its own thread: c10d waits forever for
// a server that is stopped or disconnected, and callers must not. An abandoned call continues in the background, so it
// owns everything it uses; the thread is then left behind.
class StoreThread {
 public:
  StoreThread(c10::intrusive_ptr<c10d::Store> store, Milliseconds limit)
      : limit_(limit), queue_(std::make_shared<Queue>()) {
    queue_->store = std::move(store);
    thread_ = std::thread([queue = queue_] { serve(*queue); });
  }
  ~StoreThread() {
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->closed = true;
      queue_->changed.notify_all();
    }
    queue_->stuck ? thread_.detach() : thread_.join();
  }
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  // What |body|(c10d::Store&) returns or throws; none if it takes longer than the limit.
  template <class Body>
  auto run(Body body) -> std::optional<decltype(body(std::declval<c10d::Store&>()))> {
    using Result = decltype(body(std::declval<c10d::Store&>()));
    if (queue_->stuck) return std::nullopt;
    auto task = std::make_shared<std::packaged_task<Result(c10d::Store&)>>(std::move(body));
    std::future<Result> result = task->get_future();
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->calls.push_back([task](c10d::Store& store) { (*task)(store); });
      queue_->changed.notify_all();
    }
    if (result.wait_for(limit_) == std::future_status::ready) return result.get();
    const std::lock_guard lock(queue_->mutex);
    if (result.wait_for(Milliseconds(0)) == std::future_status::ready) return result.get();  // just now
    queue_->stuck = true;
    return std::nullopt;
  }
  Milliseconds limit() const { return limit_; }

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void(c10d::Store&)>> calls CONCORD_GUARDED_BY(mutex);
    bool closed CONCORD_GUARDED_BY(mutex) = false;
    std::atomic<bool> stuck = false;  // a call was abandoned and has not returned
    c10::intrusive_ptr<c10d::Store> store;
  };

  static void serve(Queue& queue) {
    std::unique_lock lock(queue.mutex);
    for (;;) {
      queue.changed.wait(lock, [&]() CONCORD_REQUIRES(queue.mutex) { return queue.closed || !queue.calls.empty(); });
      if (queue.calls.empty()) break;
      const auto call = std::move(queue.calls.front());
      queue.calls.pop_front();
      lock.unlock();
      {
        const QuietLog quiet;
        call(*queue.store);
      }
      lock.lock();
      queue.stuck = false;
    }
    queue.store.reset();
  }

  const Milliseconds limit_;
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

class TcpStore : public Store {
 public:
  TcpStore(c10::intrusive_ptr<c10d::Store> store, std::string where, Milliseconds timeout)
      : thread_(std::move(store), std::clamp<Milliseconds>(timeout, kShortestLimit, kLongestLimit)),
        where_(std::move(where)) {}

  void set(const std::string& key, std::string_view value) override {
    call(key, [key, bytes = std::vector<uint8_t>(value.begin(), value.end())](c10d::Store& store) {
      store.set(key, bytes);
      return true;
    });
  }
  // c10d's own wait would block other threads and print two lines for every timeout. The pauses grow with the time
  // waited, so that a key is seen late by at most an eighth of it, and a large job does not flood the server.
  void wait(std::span<const std::string> keys, Milliseconds timeout) override {
    const Clock::time_point begin = Clock::now();
    while (!check(keys)) {
      const Clock::duration waited = Clock::now() - begin;
      if (waited >= timeout) {
        std::vector<std::string> names;
        for (const std::string& key : keys) names.push_back(name_of(key));
        throw Error(CONCORD_STATUS_TIMEOUT, fmt::format("the store at {} has no {} after {} ms", where_,
                                                        fmt::join(names, ", "), timeout.count()));
      }
      std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 8, kShortestPause, kLongestPause));
    }
  }
  std::vector<std::string> get_all(std::span<const std::string> keys, Milliseconds timeout) override {
    if (keys.empty()) return {};
    wait(keys, timeout);
    return call(keys.front(), [list = list_of(keys)](c10d::Store& store) {
      std::vector<std::string> values;
      for (const auto& bytes : store.multiGet(list)) values.emplace_back(bytes.begin(), bytes.end());
      return values;
    });
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return call(key, [key, amount](c10d::Store& store) { return store.add(key, amount); });
  }
  bool check(std::span<const std::string> keys) override {
    if (keys.empty()) return true;
    return call(keys.front(), [list = list_of(keys)](c10d::Store& store) { return store.check(list); });
  }
  bool remove(const std::string& key) override {
    return call(key, [key](c10d::Store& store) { return store.deleteKey(key); });
  }

 private:
  static std::vector<std::string> list_of(std::span<const std::string> keys) { return {keys.begin(), keys.end()}; }

  // Without the hash of a sealed store.
  static std::string name_of(const std::string& key) { return key.substr(0, key.find('#')); }

  Error lost(const std::string& key, const std::string& how) const {
    return {CONCORD_STATUS_PEER_LOST,
            fmt::format("the store at {}, which rank 0 or the launcher serves, {} ({})", where_, how, name_of(key))};
  }

  // |body| owns everything it uses, and returns a value.
  template <class Body>
  auto call(const std::string& key, Body body) -> decltype(body(std::declval<c10d::Store&>())) {
    try {
      if (auto result = thread_.run(std::move(body))) return std::move(*result);
    } catch (const c10::Error& error) {
      throw lost(key, fmt::format("does not answer any more: {}", error.what_without_backtrace()));
    }
    throw lost(key, fmt::format("has not answered for {} ms", thread_.limit().count()));
  }

  StoreThread thread_;
  std::string where_;
};

// c10d's constructor waits forever for a server that accepts the connection and never answers. So it runs on its own
// thread, which is left behind in that case: the process is about to exit with an error.
c10::intrusive_ptr<c10d::TCPStore> open_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  using Result = c10::intrusive_ptr<c10d::TCPStore>;
  std::packaged_task<Result()> task([host, options] {
    const QuietLog quiet;
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  });
  std::future<Result> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(options.timeout) == std::future_status::ready) return result.get();
  throw Error(CONCORD_STATUS_TIMEOUT,
              fmt::format("the process that listens there has not answered within {} ms", options.timeout.count()));
}

}  // namespace

std::shared_ptr<Store> connect_store(const JobEnvironment& job, Milliseconds timeout) {
  if (job.world == 1 && !job.agent_store) return make_local_store();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(job.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  const bool serves = job.rank == 0 && !job.agent_store;
  std::string host = job.master_addr;
  if (serves) {
    Listener listener = listen_for(job);
    options.isServer = true;
    options.masterListenFd = listener.socket.release();  // c10d owns it from here on
    host = listener.address;
  } else {
    wait_for_server(job, timeout);
  }
  const std::string where = fmt::format("{}:{}", job.master_addr, job.master_port);
  const auto refuse = [&](concord_status status, const char* words) {
    return Error(
        status,
        fmt::format(
            "rank {} cannot use the store at {}: {}; if another program is listening there, choose another MASTER_PORT",
            job.rank, where, words));
  };
  try {
    const auto store = std::make_shared<TcpStore>(open_store(host, options), where, timeout);
    if (job.token.empty()) return store;
    return make_sealed_store(store, job.token);
  } catch (const Error& error) {
    throw refuse(error.status(), error.what());
  } catch (const c10::Error& error) {
    throw refuse(CONCORD_STATUS_UNAVAILABLE, error.what_without_backtrace());
  }
}

}  // namespace concord
