// The only file that includes c10d's TCPStore, which is slow to compile.
#include "core/mesh/store/agent_store.h"

#include <fmt/core.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "platform/base/keyed_hash.hpp"
#include "platform/loader/error.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAskEvery{50};
constexpr size_t kSealDigits = 16;

// Returns a key per attempt, since the agent's store outlives an attempt.
std::string key_of_attempt() {
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return fmt::format("concord/{}/store", attempt != nullptr ? attempt : "0");
}

std::string sealed(const JobEnvironment& job, const std::string& address) {
  return fmt::format("{:016x}{}", KeyedHash(job.token)(key_of_attempt() + " " + address), address);
}

// Returns the result of |body|, which must own everything it uses: c10d waits forever for a server that does not reply,
// so an overdue call is abandoned on its thread.
std::string call_agent(const JobEnvironment& job, Milliseconds timeout,
                       const std::function<std::string(c10d::Store&)>& body) {
  auto task = std::make_shared<std::packaged_task<std::string()>>([job, timeout, body] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(job.master_port);
    options.waitWorkers = false;
    options.timeout = timeout;
    return body(*c10::make_intrusive<c10d::TCPStore>(job.master_addr, options));
  });
  std::future<std::string> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  const std::string where = fmt::format("torchrun's store at {}:{}", job.master_addr, job.master_port);
  if (result.wait_for(timeout) != std::future_status::ready) {
    throw Error(
        CONCORD_STATUS_TIMEOUT,
        fmt::format(
            "rank {} found no address of the job's store in {} within {} ms; is rank 0 running, and do all ranks "
            "have the same {}, or none?",
            job.rank, where, timeout.count(), kJobToken));
  }
  try {
    return result.get();
  } catch (const c10::Error& error) {
    throw Error(CONCORD_STATUS_UNAVAILABLE,
                fmt::format("rank {} cannot use {}: {}", job.rank, where, error.what_without_backtrace()));
  }
}

}  // namespace

void publish_address(const JobEnvironment& job, const std::string& address, Milliseconds timeout) {
  const std::string value = sealed(job, address);
  call_agent(job, timeout, [value](c10d::Store& store) {
    store.set(key_of_attempt(), std::vector<uint8_t>(value.begin(), value.end()));
    store.check({key_of_attempt()});  // has a reply, unlike set
    return std::string();
  });
}

std::string published_address(const JobEnvironment& job, Milliseconds timeout) {
  return call_agent(job, timeout, [job, end = Clock::now() + timeout](c10d::Store& store) {
    while (Clock::now() < end) {
      if (store.check({key_of_attempt()})) {
        const std::vector<uint8_t> bytes = store.get(key_of_attempt());
        const std::string value(bytes.begin(), bytes.end());
        const std::string address = value.substr(std::min(value.size(), kSealDigits));
        if (value == sealed(job, address)) return address;
      }
      std::this_thread::sleep_for(kAskEvery);
    }
    return std::string();  // no caller waits for it any longer
  });
}

}  // namespace concord
