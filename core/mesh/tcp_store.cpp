// connect_store of rendezvous.h: c10d's TCPStore behind our Store. The only file that includes it, since it is slow to
// compile. Sockets are opened here first, because c10d retries a refused connection only after up to a second and does
// not tell a port in use from other failures.
#include <c10/util/Logging.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <resolv.h>
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
// How often a rank looks at a key before the server is asked to say when it comes. In a large job most ranks wait long
// for the last one.
constexpr int kLooksInSmallJobs = 4;
constexpr int kLooksInLargeJobs = 1;
constexpr int64_t kSmallJob = 64;  // ranks
// Ranks connect one after the other: what a server's queue of new connections has no room for is tried again by the
// kernel only after 1, 3 and 7 seconds.
constexpr std::chrono::microseconds kTurn{100};
constexpr Milliseconds kPulseEvery{250};
constexpr Milliseconds kSlice{2000};  // of a wait: a server that is stopped is noticed soon after it
// How long one call, which never waits for another rank, may take: the job's timeout, clamped to these.
constexpr Milliseconds kShortestLimit{5000};
constexpr Milliseconds kLongestLimit{60000};

std::atomic<int64_t> requests = 0;  // of all stores

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

struct Server {
  std::string address;  // as numbers
  UniqueFd socket;
};

// Waits until a process listens at the master's address.
Server wait_for_server(const JobEnvironment& job, Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::this_thread::sleep_for(std::min<Clock::duration>(job.rank * kTurn, timeout / 2));
  for (Milliseconds pause{2};; pause = std::min(pause * 3 / 2 + Milliseconds(1), Milliseconds(200))) {
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
    const Milliseconds limit = std::clamp(left, Milliseconds(1), Milliseconds(5000));
    std::string reason;
    if (UniqueFd socket = connect_once(job.master_addr, job.master_port, limit, &reason)) {
      const std::string address = peer_address(socket);
      return {address.empty() ? job.master_addr : address, std::move(socket)};
    }
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
// object c10's log is silent (for all threads; most calls take microseconds), unless the user has set a log level.
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

// c10d asks for the name of the address that it connects to, for messages that nobody sees. If thousands of ranks do
// that at once, some answer is lost, and its rank waits 5 s. This thread then has no name server to ask; c10d uses the
// numbers.
void ask_no_name_server() {
  if (res_init() == 0) _res.nscount = 0;  // glibc has these once per thread
}

// Opens a connection to the server. Owns everything it uses.
using Connect = std::function<c10::intrusive_ptr<c10d::Store>()>;

// Opens one c10d store and makes its calls, one after the other as c10d does anyway, on its own thread: c10d waits
// forever for a server that never answers, is stopped or disconnected, and callers must not. An abandoned call
// continues in the background, so it owns everything it uses; the thread is then left behind.
class StoreThread {
 public:
  // Throws what |connect| throws, or Error (TIMEOUT) if it takes longer than |patience|. |limit|: of a call.
  StoreThread(const Connect& connect, Milliseconds patience, Milliseconds limit, std::shared_ptr<HostPulse> pulse)
      : limit_(limit), pulse_(std::move(pulse)), queue_(std::make_shared<Queue>()) {
    std::packaged_task<void()> open([queue = queue_, connect] {
      const QuietLog quiet;
      ask_no_name_server();
      queue->store = connect();
    });
    std::future<void> opened = open.get_future();
    thread_ = std::thread([queue = queue_, open = std::move(open)]() mutable {
      open();
      if (queue->store != nullptr) serve(*queue);
    });
    if (opened.wait_for(patience) != std::future_status::ready) {
      close();
      thread_.detach();
      throw Error(CONCORD_STATUS_TIMEOUT,
                  fmt::format("the process that listens there has not answered within {} ms", patience.count()));
    }
    try {
      opened.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }
  ~StoreThread() {
    close();
    queue_->stuck ? thread_.detach() : thread_.join();
  }
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  // What |body|(c10d::Store&) returns or throws; none if it takes longer than the limit and |waits|, the time for which
  // it may wait for another rank, or if the server's machine cannot be reached any more.
  template <class Body>
  auto run(Body body, Milliseconds waits = {}) -> std::optional<decltype(body(std::declval<c10d::Store&>()))> {
    using Result = decltype(body(std::declval<c10d::Store&>()));
    if (queue_->stuck) return std::nullopt;
    auto task = std::make_shared<std::packaged_task<Result(c10d::Store&)>>(std::move(body));
    std::future<Result> result = task->get_future();
    {
      const std::lock_guard lock(queue_->mutex);
      queue_->calls.push_back([task](c10d::Store& store) { (*task)(store); });
      queue_->changed.notify_all();
    }
    const auto end = Clock::now() + limit_ + waits;
    while (Clock::now() < end && pulse_->error() == 0) {
      const auto left = std::min<Clock::duration>(kPulseEvery, end - Clock::now());
      if (result.wait_for(left) == std::future_status::ready) return result.get();
    }
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

  void close() {
    const std::lock_guard lock(queue_->mutex);
    queue_->closed = true;
    queue_->changed.notify_all();
  }

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
  const std::shared_ptr<HostPulse> pulse_;
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

class TcpStore : public Store {
 public:
  // |connect_again| is called if a thread uses the store while another waits. Waits: at most |timeout|. Throws what
  // |connect| throws, or Error (TIMEOUT).
  TcpStore(const Connect& connect, Connect connect_again, std::string where, Milliseconds timeout, int looks,
           std::shared_ptr<HostPulse> pulse)
      : looks_(looks),
        pulse_(std::move(pulse)),
        thread_(connect, timeout, std::clamp<Milliseconds>(timeout, kShortestLimit, kLongestLimit), pulse_),
        connect_again_(std::move(connect_again)),
        where_(std::move(where)) {}

  void set(const std::string& key, std::string_view value) override {
    const auto body = [key, bytes = std::vector<uint8_t>(value.begin(), value.end())](c10d::Store& store) {
      store.set(key, bytes);
      return true;
    };
    call(key, body, Answer::none);
  }
  void wait(std::span<const std::string> keys, Milliseconds timeout) override {
    if (keys.empty()) return;
    const auto look = [&] { return check(keys) ? std::optional(true) : std::nullopt; };
    await(keys, timeout, look, [](c10d::Store& store, const std::vector<std::string>& list, Milliseconds limit) {
      store.wait(list, limit);
      return true;
    });
  }
  std::vector<std::string> get_all(std::span<const std::string> keys, Milliseconds timeout) override {
    if (keys.empty()) return {};
    const auto look = [&]() -> std::optional<std::vector<std::string>> {
      if (!check(keys)) return std::nullopt;
      return call(keys.front(), [list = list_of(keys), limit = thread_.limit()](c10d::Store& store) {
        return values_of(store, list, limit);
      });
    };
    return await(keys, timeout, look, values_of);
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
  enum class Answer { none, one };  // whether the server answers a request

  static std::vector<std::string> list_of(std::span<const std::string> keys) { return {keys.begin(), keys.end()}; }

  // Waits for the keys, at most |limit|: c10d asks for that itself before it asks for the values.
  static std::vector<std::string> values_of(c10d::Store& store, const std::vector<std::string>& keys,
                                            Milliseconds limit) {
    store.setTimeout(limit);
    std::vector<std::string> values;
    for (const auto& bytes : store.multiGet(keys)) values.emplace_back(bytes.begin(), bytes.end());
    return values;
  }

  // The server tells one waiting thread when the keys are there (|fetch|): a large job whose ranks all wait for the
  // last one costs it one answer per rank. Other threads meanwhile |look| again and again, with pauses that grow with
  // the time waited, so that a key is seen late by at most an eighth of it.
  template <class Look, class Fetch>
  auto await(std::span<const std::string> keys, Milliseconds timeout, Look look, Fetch fetch) ->
      typename decltype(look())::value_type {
    const Clock::time_point begin = Clock::now();
    for (int looks = 1;; ++looks) {
      const Clock::duration waited = Clock::now() - begin;
      const auto left = std::chrono::ceil<Milliseconds>(timeout - waited);
      std::unique_lock lock(waiting_, std::defer_lock);
      const bool at_server = looks >= looks_ && left > Milliseconds(0) && lock.try_lock();
      if (auto found = at_server ? wait_at_server(keys, left, fetch) : look()) return std::move(*found);
      if (waited >= timeout) throw absent(keys, timeout);
      if (!at_server) {
        std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 8, kShortestPause, kLongestPause));
      }
    }
  }

  // Without the hash of a sealed store.
  static std::string name_of(const std::string& key) { return key.substr(0, key.find('#')); }

  Error absent(std::span<const std::string> keys, Milliseconds timeout) const {
    std::vector<std::string> names;
    for (const std::string& key : keys) names.push_back(name_of(key));
    return {CONCORD_STATUS_TIMEOUT,
            fmt::format("the store at {} has no {} after {} ms", where_, fmt::join(names, ", "), timeout.count())};
  }

  Error lost(const std::string& key, const std::string& how) const {
    return {CONCORD_STATUS_PEER_LOST,
            fmt::format("the store at {}, which rank 0 or the launcher serves, {} ({})", where_, how, name_of(key))};
  }

  // |body| owns everything it uses, and returns a value. A set has no answer: what this thread asks for next may only
  // go over the other connection when it is known to have come.
  template <class Body>
  auto call(const std::string& key, Body body, Answer answer = Answer::one)
      -> decltype(body(std::declval<c10d::Store&>())) {
    const std::lock_guard lock(calls_);
    if (!is_waited_on_) {
      is_settled_ = answer == Answer::one;
      return call_on(thread_, key, std::move(body));
    }
    if (second_ == nullptr) second_ = connect_second(key);
    const auto settled = [key, answer, body = std::move(body)](c10d::Store& store) {
      auto result = body(store);
      if (answer == Answer::none) store.check({key});
      return result;
    };
    return call_on(*second_, key, settled);
  }
  template <class Body>
  auto call_on(StoreThread& thread, const std::string& key, Body body, Milliseconds waits = {})
      -> decltype(body(std::declval<c10d::Store&>())) {
    ++requests;
    try {
      if (auto result = thread.run(std::move(body), waits)) return std::move(*result);
    } catch (const c10::Error& error) {
      throw lost(key, fmt::format("does not answer any more: {}", error.what_without_backtrace()));
    }
    if (const int error = pulse_->error()) {
      throw lost(key, fmt::format("cannot be reached any more: {}", std::strerror(error)));
    }
    throw lost(key, fmt::format("has not answered for {} ms", (thread.limit() + waits).count()));
  }

  std::unique_ptr<StoreThread> connect_second(const std::string& key) const {
    try {
      return std::make_unique<StoreThread>(connect_again_, thread_.limit(), thread_.limit(), pulse_);
    } catch (const Error& error) {
      throw lost(key, error.what());
    } catch (const c10::Error& error) {
      throw lost(key, fmt::format("does not answer any more: {}", error.what_without_backtrace()));
    }
  }

  // What |fetch| returns if |keys| are there within |timeout| or a slice of it. c10d's wait blocks its connection;
  // calls of other threads go over a second one meanwhile, which few ranks of a job ever need. One thread at a time:
  // see waiting_.
  template <class Fetch>
  auto wait_at_server(std::span<const std::string> keys, Milliseconds timeout, Fetch fetch)
      -> std::optional<decltype(fetch(std::declval<c10d::Store&>(), list_of(keys), timeout))> {
    using Result = decltype(fetch(std::declval<c10d::Store&>(), list_of(keys), timeout));
    begin_wait(keys.front());
    const auto end = [this] {
      const std::lock_guard lock(calls_);
      is_waited_on_ = false;
    };
    const Milliseconds slice = std::min(timeout, kSlice);
    const auto wait = [list = list_of(keys), slice, fetch](c10d::Store& store) -> std::optional<Result> {
      try {
        return fetch(store, list, slice);
      } catch (const c10::DistStoreError&) {  // not within |slice|; a lost connection is a DistNetworkError
        return std::nullopt;
      }
    };
    try {
      auto found = call_on(thread_, keys.front(), wait, slice);
      end();
      return found;
    } catch (...) {
      end();
      throw;
    }
  }

  // From now on calls go over the second connection: only when all that was set over the first one has come.
  void begin_wait(const std::string& key) {
    const std::lock_guard lock(calls_);
    const auto look = [key](c10d::Store& store) { return store.check({key}); };
    if (!is_settled_) call_on(thread_, key, look);
    is_settled_ = true;
    is_waited_on_ = true;
  }

  const int looks_;
  const std::shared_ptr<HostPulse> pulse_;
  StoreThread thread_;
  const Connect connect_again_;
  std::string where_;
  std::mutex waiting_;                                    // held by the thread that waits at the server
  std::mutex calls_;                                      // held during a call, but not while the server waits
  bool is_waited_on_ CONCORD_GUARDED_BY(calls_) = false;  // thread_
  bool is_settled_ CONCORD_GUARDED_BY(calls_) = true;     // thread_: no set may still be under way
  std::unique_ptr<StoreThread> second_ CONCORD_GUARDED_BY(calls_);  // once a call has needed it
};

}  // namespace

int64_t store_requests() { return requests; }

std::shared_ptr<Store> connect_store(const JobEnvironment& job, Milliseconds timeout) {
  if (job.world == 1 && !job.agent_store) return make_local_store();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(job.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  const bool serves = job.rank == 0 && !job.agent_store;
  std::string host = job.master_addr;
  auto pulse = std::make_shared<HostPulse>();
  if (serves) {
    Listener listener = listen_for(job);
    options.isServer = true;
    options.masterListenFd = listener.socket.release();  // c10d owns it from here on
    host = listener.address;
  } else {
    Server server = wait_for_server(job, timeout);
    host = server.address;
    // On this machine the end of the process is enough to see.
    if (own_address(server.socket) != host) pulse = std::make_shared<HostPulse>(std::move(server.socket));
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
    const auto connect = [&](bool first) -> Connect {
      c10d::TCPStoreOptions chosen = options;
      if (!first) chosen.isServer = false;
      if (!first) chosen.masterListenFd.reset();
      return [host, chosen] { return c10::make_intrusive<c10d::TCPStore>(host, chosen); };
    };
    const auto store =
        std::make_shared<TcpStore>(connect(true), connect(false), where, timeout,
                                   job.world <= kSmallJob ? kLooksInSmallJobs : kLooksInLargeJobs, pulse);
    if (job.token.empty()) return store;
    return make_sealed_store(store, job.token);
  } catch (const Error& error) {
    throw refuse(error.status(), error.what());
  } catch (const c10::Error& error) {
    throw refuse(CONCORD_STATUS_UNAVAILABLE, error.what_without_backtrace());
  }
}

}  // namespace concord
