#include "core/mesh/initialize.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/base/config_error.h"
#include "core/base/job_board.h"
#include "core/base/quoted.h"
#include "core/mesh/job_environment.h"
#include "core/mesh/job_platforms.h"
#include "core/mesh/store/platform_exchange.h"
#include "core/mesh/store/rendezvous.h"
#include "platform/base/thread_safety.hpp"
#include "platform/bridge/bridge.h"
#include "platform/cpp/platform.hpp"
#include "platform/loader/host.h"
#include "platform/loader/registry.h"

namespace concord {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAfterFailure{2000};

// The one process-wide instance. Never destroyed: at exit, threads of libtorch or of a plugin may still use it.
struct Instance {
  std::mutex mutex;
  std::atomic<ParallelContext*> published = nullptr;
  std::unique_ptr<ParallelContext> context CONCORD_GUARDED_BY(mutex);
  std::vector<Term> arguments CONCORD_GUARDED_BY(mutex);  // of the existing context
  Milliseconds timeout CONCORD_GUARDED_BY(mutex){0};
  JobEnvironment job CONCORD_GUARDED_BY(mutex);  // the job that |store| belongs to
  // Outlives the context, so that the next one can start while the peers are still connected.
  std::shared_ptr<Store> store CONCORD_GUARDED_BY(mutex);
  int64_t generation CONCORD_GUARDED_BY(mutex) = 0;  // number of contexts so far
};

Instance& instance() {
  static auto* one = [] {
    // A process that exits without finalize still has a thread that uses the store, and peers that wait for it.
    std::atexit([] {
      if (ParallelContext* context = instance().published) context->abandon();
    });
    return new Instance();
  }();
  return *one;
}

std::string text_of(const std::vector<GroupKind>& kinds) {
  std::vector<std::string> names;
  for (const GroupKind kind : kinds) names.emplace_back(to_string(kind));
  return fmt::format("{}", fmt::join(names, ","));
}

// Returns the settings that must be equal on all ranks, and in all calls of one process.
std::vector<Term> terms_of(const InitializeArgs& args, const RankLayout& layout) {
  return {{"tensor_model_parallel_size", fmt::format("{}", layout.tp())},
          {"pipeline_model_parallel_size", fmt::format("{}", layout.pp())},
          {"virtual_pipeline_model_parallel_size", fmt::format("{}", layout.vpp())},
          {"context_parallel_size", fmt::format("{}", layout.cp())},
          {"expert_model_parallel_size", fmt::format("{}", layout.ep())},
          {"expert_tensor_parallel_size", fmt::format("{}", layout.etp())},
          {"order", args.order},
          {"seed", fmt::format("{}", args.seed)},
          {"data_parallel_random_init", args.data_parallel_random_init ? "true" : "false"},
          {"deterministic_mode", args.deterministic_mode ? "true" : "false"},
          {"ddp_timeout", fmt::format("{}", args.ddp_timeout)},
          {"create_groups", text_of(args.create_groups)}};
}

void refuse_other_arguments(const std::vector<Term>& before, const std::vector<Term>& now) {
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == now[i]) continue;
    throw ConfigError(
        fmt::format("initialize was already called with {} {} and now with {}; call finalize first, on all ranks, or "
                    "use the same arguments",
                    before[i].name, before[i].value, now[i].value));
  }
}

// Returns the index of this rank's device on the machine. The launcher sets it if it skips a device.
int64_t slot_of(const JobEnvironment& job) {
  const char* text = std::getenv(kSlotVariable);
  int64_t slot = job.local_rank;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), slot);
  return slot;
}

Platform platform_of(const InitializeArgs& args) {
  const std::string own = own_platform(args.platform);
  use_platform(own);
  const loader::Plugin& used = loader::current_plugin();
  if (!own.empty() && &loader::open_plugin(own) != &used) {
    throw ConfigError(fmt::format("platform is {}, but this process already uses {}; choose it before anything else",
                                  quoted(own), used.name));
  }
  return Platform(used);
}

// The device of this process: one per local rank, or, if the platform lets ranks share devices, round-robin.
Device device_of(const Platform& platform, const JobEnvironment& job) {
  const int32_t count = platform.device_count();
  const int64_t slot = slot_of(job);
  if (count == 0) {
    throw Error(CONCORD_STATUS_UNAVAILABLE, fmt::format("platform '{}' has no device", platform.name()));
  }
  if (slot >= count && platform.capability(CONCORD_CAP_COMM_SHARED_DEVICE) == 0) {
    const char* variable = platform.core().visible_devices_variable;
    throw ConfigError(fmt::format(
        "local rank {} needs its own device, but platform '{}' has {}; start at most {} processes on this machine{}",
        slot, platform.name(), count, count,
        variable != nullptr ? fmt::format(", or make more devices visible ({})", variable) : ""));
  }
  return {platform, static_cast<int32_t>(slot % count)};
}

bool check_calls_is_on() {
  const std::string layers = loader::setting("layers").value_or("");
  return fmt::format(",{},", layers).find(",validate,") != std::string::npos;
}

std::string flight_folder(const InitializeArgs& args) {
  return args.flight_folder.empty() ? loader::setting("flight_folder").value_or(".") : args.flight_folder;
}

// Seeds libtorch's own generators, on the host and on the device.
void seed_torch(const ParallelContext& context, const RngSeeds& seeds) {
  const auto seed = [&](const c10::Device& device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seeds.data_parallel);
  };
  seed(c10::Device(c10::kCPU));
  if (!context.torch_device().is_cpu()) seed(context.torch_device());
}

// Under torchrun the store outlives a failed attempt; each attempt has its own keys in it.
std::string key_prefix(int64_t generation) {
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return fmt::format("concord/{}/{}/", attempt != nullptr ? attempt : "0", generation);
}

void check_timeout(int64_t seconds) {
  constexpr int64_t kMaxSeconds = int64_t{1000} * 365 * 24 * 3600;
  if (seconds < 1 || seconds > kMaxSeconds) {
    throw ConfigError(fmt::format("ddp_timeout is {}; must be a number of seconds >= 1", seconds));
  }
}

// Sets the store of |job|: |given| or the previous one, unless the process has joined another job since.
void join_store(Instance& one, const JobEnvironment& job, Milliseconds timeout, std::shared_ptr<Store> given)
    CONCORD_REQUIRES(one.mutex) {
  if (given != nullptr && given != one.store) {
    one.store = std::move(given);
    one.job = job;
    one.generation = 0;
  }
  if (one.store != nullptr && one.job == job) return;
  one.store.reset();  // before the next one, which may use the same port
  one.store = connect_store(job, timeout);
  if (job.rank == 0 && job.world > 1 && job.token.empty() && !uses_unix_socket(job)) {
    loader::log(CONCORD_LOG_WARN, "core",
                fmt::format("anyone who can reach {}:{} can disturb this job: {} is not set; start the job with "
                            "`concord launch`, or set it to the same random text on all ranks",
                            job.master_addr, job.master_port, kJobToken));
  }
  one.job = job;
  one.generation = 0;
}

// Makes libtorch and the plugin choose only deterministic algorithms; so does CONCORD_DETERMINISTIC=1. Uninitialised
// memory is not filled, which is only libtorch's aid to detect reads of it.
void set_deterministic(bool wanted) {
  if (wanted) loader::override_config("deterministic", "1");
  const bool is_set = loader::setting("deterministic") == "1";
  at::globalContext().setDeterministicAlgorithms(is_set, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void make_context(Instance& one, const InitializeArgs& args, const JobEnvironment& job, const RankLayout& layout,
                  std::vector<Term> arguments, std::shared_ptr<Store> given) CONCORD_REQUIRES(one.mutex) {
  const RngSeeds seeds = rng_seeds(args.seed, layout.coordinates(job.rank), args.data_parallel_random_init);
  const Milliseconds timeout = std::chrono::seconds(args.ddp_timeout);
  // Must precede the opening of the plugin, see host.h.
  loader::override_config("comm.timeout", fmt::format("{}", args.ddp_timeout));
  if (given == nullptr) loader::override_config("comm.master", job.master_addr);
  set_deterministic(args.deterministic_mode);
  const Platform platform = platform_of(args);
  const Device device = device_of(platform, job);
  device.make_current();
  join_store(one, job, timeout, std::move(given));
  const std::shared_ptr<Store> store = make_prefix_store(one.store, key_prefix(++one.generation));
  const Peers early(store, job.rank);  // announces this rank, which may exit before all have joined
  std::vector<Term> terms = arguments;
  terms.push_back({"bridge", fmt::format("format {}", bridge::kWireFormat)});
  const OwnPlatform own{job.rank, job.world, std::string(platform.name()), loader::setting("platform").has_value()};
  announce_platform(*store, own);
  rendezvous(*store, {job.rank, job.world, describe_this_process(), std::move(terms)}, timeout);
  PlatformMap platforms = exchange_platforms(*store, own, timeout);
  check_platforms(layout, platforms);
  auto context = std::make_unique<ParallelContext>(
      ParallelContext::Options{device, layout, job.rank, store, seeds, timeout, check_calls_is_on(),
                               flight_folder(args), job.local_rank, std::move(platforms)});
  seed_torch(*context, seeds);
  context->create_groups(args.create_groups);
  one.context = std::move(context);
  one.arguments = std::move(arguments);
  one.timeout = timeout;
  one.published = one.context.get();
}

}  // namespace

ParallelContext& initialize(const InitializeArgs& args, std::shared_ptr<Store> store) {
  Instance& one = instance();
  const std::lock_guard lock(one.mutex);
  const JobEnvironment job = read_job_environment();
  const RankLayout layout = layout_of(args, job.world);
  check_timeout(args.ddp_timeout);
  std::vector<Term> arguments = terms_of(args, layout);
  if (one.context != nullptr) {
    refuse_other_arguments(one.arguments, arguments);
    const RngSeeds seeds = rng_seeds(args.seed, one.context->coordinates(), args.data_parallel_random_init);
    one.context->rng().reseed(seeds);
    seed_torch(*one.context, seeds);
    return *one.context;
  }
  make_context(one, args, job, layout, std::move(arguments), std::move(store));
  return *one.context;
}

bool is_initialized() { return instance().published != nullptr; }

ParallelContext& parallel_context() {
  ParallelContext* context = instance().published;
  if (context == nullptr) {
    throw Error(CONCORD_STATUS_FAILED_PRECONDITION,
                "this process is not part of a job; call concord::initialize first");
  }
  return *context;
}

void finalize() {
  Instance& one = instance();
  const std::lock_guard lock(one.mutex);
  if (one.context == nullptr) return;
  one.published = nullptr;
  // In a failed job some ranks may never return.
  const Milliseconds patience = one.context->failed() ? std::min(one.timeout, kAfterFailure) : one.timeout;
  try {
    const Member member{one.job.rank, one.job.world, {}, {}};
    Peers& peers = one.context->flight().peers();
    peers.leave(Peers::LeaveReason::done);
    if (!exit_barrier(one.context->store(), member, patience, [&] { return peers.is_any_lost(member.world); })) {
      loader::log(CONCORD_LOG_WARN, "core", "finalize: not all ranks have called it");
    }
  } catch (const Error& error) {
    loader::log(CONCORD_LOG_WARN, "core", fmt::format("finalize: {}", error.what()));
  }
  one.context.reset();
}

}  // namespace concord
