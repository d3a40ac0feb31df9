#include "platform/conformance/processes/worker.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "platform/conformance/context.h"
#include "platform/conformance/perf.h"
#include "platform/conformance/processes/channel.h"
#include "platform/conformance/processes/gang.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

class ParentExchange : public Exchange {
 public:
  ParentExchange(Channel& channel, int rank, int world) : channel_(channel) {
    const size_t bytes = kStepBytes * static_cast<size_t>(world);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kWorkerStepsFd, 0);
    if (mapped != MAP_FAILED) line_ = static_cast<char*>(mapped) + kStepBytes * static_cast<size_t>(rank);
  }

  std::vector<std::string> gather(const std::string& mine, bool allow_lost) override {
    step("a synchronization of the ranks outside the plugin");
    Message answer{};
    if (!channel_.send(MessageKind::kGather, mine) || !channel_.receive(answer)) throw Failed{"the parent is gone"};
    std::vector<std::string> parts = unpack(answer.body);
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      if (parts[rank][0] == '-' && !allow_lost) throw Failed{text("rank %zu has exited the test", rank)};
      parts[rank].erase(0, 1);
    }
    return parts;
  }

  void announce_death() override { channel_.send(MessageKind::kDying, ""); }

  void step(const char* what) override {
    if (line_ == nullptr) return;
    const std::lock_guard lock(mutex_);
    std::strncpy(line_, what, kStepBytes - 1);
  }

 private:
  Channel& channel_;
  std::mutex mutex_;
  char* line_ = nullptr;
};

PluginInfo describe(const Plugin& plugin) {
  const concord_core_table& core = plugin.tables.core;
  PluginInfo info;
  info.name = core.name;
  info.version = core.version;
  info.label = core.label;
  info.path = plugin.path;
  info.abi_major = plugin.root->header.major;
  info.abi_minor = plugin.root->header.minor;
  for (int64_t i = 0; i < core.capability_count; ++i) {
    const concord_capability& known = core.capabilities[i];
    info.capabilities.push_back({known.name, known.value, known.note != nullptr ? known.note : ""});
  }
  return info;
}

// Nothing can be tested then, and one message says so.
std::string without_device(const Plugin& plugin) {
  const std::string detail = take_detail();
  return text("the plugin %s (%s) has no device%s%s; the kit needs one", plugin.tables.core.name, plugin.path.c_str(),
              detail.empty() ? "" : ": ", detail.c_str());
}

TestResult run_test(const std::string& name, Context& t) {
  TestResult result;
  const Test* test = all_tests().find(name);
  try {
    t.start_test();
    if (is_perf_job(name)) {
      run_perf_job(t, name);
    } else if (test == nullptr) {
      t.fail("unknown test");
    } else {
      test->body(t);
    }
  } catch (const Failed& failed) {
    result.status = Status::kFail;
    result.reason = failed.reason;
  } catch (const Skipped& skipped) {
    result.status = Status::kSkip;
    result.reason = skipped.reason;
    result.unsupported = skipped.unsupported;
  } catch (const std::exception& error) {
    result.status = Status::kFail;
    result.reason = std::string("the test threw: ") + error.what();
  }
  result.share = t.share();
  return result;
}

}  // namespace

int worker_main(int rank, int world, bool quick, const std::string& platform) {
  Channel channel(kWorkerChannelFd);
  ParentExchange exchange(channel, rank, world);
  Plugin plugin;
  try {
    plugin = open_plugin(platform, rank);
  } catch (const std::exception& error) {
    channel.send(MessageKind::kRefused, error.what());
    return 0;
  }
  exchange.step("the first calls into the plugin");
  Context context(plugin, exchange, rank, world, quick);
  if (context.device_count() == 0) {
    channel.send(MessageKind::kRefused, without_device(plugin));
    return 0;
  }
  PluginInfo info = describe(plugin);
  info.devices = context.device_count();
  channel.send(MessageKind::kHello, info.to_bytes());
  for (Message message; channel.receive(message) && message.kind == MessageKind::kRun;) {
    if (!channel.send(MessageKind::kResult, run_test(message.body, context).to_bytes())) break;
  }
  exchange.step("the end of the process");
  return 0;
}

}  // namespace concord::conformance
