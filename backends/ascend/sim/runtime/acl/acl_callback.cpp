// Callbacks that run on a thread of the program: it subscribes to a stream and calls aclrtProcessReport in a loop.
#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/faults.h"
#include "backends/ascend/sim/runtime/machine.h"
#include "platform/base/thread_safety.hpp"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

// What streams have for one subscribed thread.
class Mailbox {
 public:
  // Waits until the thread has run |work|, if |block|; or until |given_up|, of which stop() is informed.
  void post(std::function<void()> work, bool block, const std::shared_ptr<std::atomic<bool>>& given_up) {
    std::unique_lock lock(mutex_);
    waiting_.push_back(std::move(work));
    const uint64_t number = ++posted_;
    changed_.notify_all();
    if (block) changed_.wait(lock, [&]() CONCORD_REQUIRES(mutex_) { return done_ >= number || given_up->load(); });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
    }
    changed_.notify_all();
  }
  // False if nothing came within |timeout_ms| (-1: no limit).
  bool run_one(int32_t timeout_ms) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      const auto come = [&]() CONCORD_REQUIRES(mutex_) { return !waiting_.empty(); };
      if (timeout_ms < 0) {
        changed_.wait(lock, come);
      } else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), come)) {
        return false;
      }
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
    {
      const std::lock_guard lock(mutex_);
      ++done_;
    }
    changed_.notify_all();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_ CONCORD_GUARDED_BY(mutex_);
  uint64_t posted_ CONCORD_GUARDED_BY(mutex_) = 0;
  uint64_t done_ CONCORD_GUARDED_BY(mutex_) = 0;
};

struct Subscriptions {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<Mailbox>> of_thread CONCORD_GUARDED_BY(mutex);
  std::map<const Stream*, std::pair<uint64_t, std::shared_ptr<Mailbox>>> of_stream CONCORD_GUARDED_BY(mutex);
};

Subscriptions& subscriptions() {
  static Subscriptions& instance = *new Subscriptions;
  return instance;
}

uint64_t this_thread() { return static_cast<uint64_t>(pthread_self()); }

}  // namespace

aclError aclrtSubscribeReport(uint64_t thread, aclrtStream stream) {
  return guarded(__func__, [&] {
    const std::shared_ptr<Stream> on = Machine::instance().stream(stream);
    const std::lock_guard lock(subscriptions().mutex);
    if (subscriptions().of_stream.count(on.get()) != 0) fail(kRtStreamSubscribe, "the stream already has a subscriber");
    auto& mailbox = subscriptions().of_thread[thread];
    if (mailbox == nullptr) mailbox = std::make_shared<Mailbox>();
    subscriptions().of_stream.emplace(on.get(), std::pair(thread, mailbox));
  });
}

aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream stream) {
  return guarded(__func__, [&] {
    const std::shared_ptr<Stream> on = Machine::instance().stream(stream);
    const std::lock_guard lock(subscriptions().mutex);
    const auto found = subscriptions().of_stream.find(on.get());
    if (found == subscriptions().of_stream.end() || found->second.first != thread) {
      fail(kRtThreadSubscribe, "this thread has not subscribed to the stream");
    }
    subscriptions().of_stream.erase(found);
  });
}

aclError aclrtLaunchCallback(aclrtCallback function, void* arguments, aclrtCallbackBlockType block,
                             aclrtStream stream) {
  return guarded_queueing(__func__, [&](const WorkFault& fault) {
    require_not_null(reinterpret_cast<void*>(function), "fn");
    if (block > kCallbackBlock) fail(kRtParamInvalid, text("block type %u; there are 0 and 1", block));
    const std::shared_ptr<Stream> on = Machine::instance().stream(stream);
    std::shared_ptr<Mailbox> mailbox;
    {
      const std::lock_guard lock(subscriptions().mutex);
      const auto found = subscriptions().of_stream.find(on.get());
      if (found == subscriptions().of_stream.end()) {
        fail(kRtStreamNoCallback, "no thread has subscribed to the stream: call aclrtSubscribeReport first");
      }
      mailbox = found->second.second;
    }
    const bool wait = block == kCallbackBlock;
    auto given_up = std::make_shared<std::atomic<bool>>(false);
    on->submit({"aclrtLaunchCallback", [=] { mailbox->post([=] { function(arguments); }, wait, given_up); },
                [=] {
                  given_up->store(true);
                  mailbox->stop();
                },
                fault});
  });
}

aclError aclrtProcessReport(int32_t milliseconds) {
  return guarded(__func__, [&] {
    if (milliseconds < -1) fail(kRtParamInvalid, text("a timeout of %d ms; it must be >= -1", milliseconds));
    std::shared_ptr<Mailbox> mailbox;
    {
      const std::lock_guard lock(subscriptions().mutex);
      const auto found = subscriptions().of_thread.find(this_thread());
      if (found == subscriptions().of_thread.end())
        fail(kRtThreadSubscribe, "this thread has not subscribed to a stream");
      mailbox = found->second;
    }
    if (!mailbox->run_one(milliseconds)) fail(kRtWaitTimeout, text("no callback within %d ms", milliseconds));
  });
}
