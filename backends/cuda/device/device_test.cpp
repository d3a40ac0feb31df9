// What the conformance kit does not ask of this backend, on a real device: random numbers bit for bit against the host,
// graphs, and all the ways in which NCCL can be left waiting. Two ranks share the device. Run by ../device_check.sh; on
// the fake it runs in CI.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>

#include "backends/cuda/device/harness.h"
#include "platform/sdk/philox.hpp"

namespace concord::device {
namespace {

constexpr int64_t kShort = 3'000;  // ms; a timeout that is meant to be met
constexpr int64_t kLong = 60'000;  // one that is not

template <class Table>
const Table& extension(const Case& run, const char* name) {
  const concord_plugin* plugin = run.host.plugin();
  const concord_table_header* found = plugin->find_table(plugin->self, name);
  run.require(found != nullptr, std::string("there is no table ") + name);
  return *reinterpret_cast<const Table*>(found);
}

// ---------------------------------------------------------------------------------------------------- a single process

void devices_are_described(Case& run) {
  const concord_device_table& device = run.host.device();
  concord_device_info info{};
  info.struct_size = sizeof info;
  run.check(device.info(device.self, 0, &info), "device.info");
  std::printf("    %s, %s, %s, %lld MiB, %d multiprocessors; plugin %s\n", info.name, info.architecture,
              info.pci_bus_id, static_cast<long long>(info.total_memory >> 20), info.multiprocessors,
              run.host.core().version);
  std::printf("    peak: %g FLOP/s in f32, %g in bf16\n", info.peak_flops_f32, info.peak_flops_bf16);
  run.require(info.name[0] != '\0' && std::strncmp(info.architecture, "sm_", 3) == 0, "a device without a name");
  run.require(std::strlen(info.pci_bus_id) >= 12, "a device without a PCI id");
  run.require(info.total_memory > 0 && info.multiprocessors > 0, "a device of no size");
}

template <class Generator>
void compare_with_host(Case& run, const concord_rng_request& request, const Generator& generator) {
  using Out = typename Generator::Out;
  const auto count = static_cast<size_t>(request.count);
  Out* buffer = run.new_array(std::vector<Out>(count + 1));
  concord_rng_request own = request;
  own.destination = buffer + 1;  // not at the start of a pack
  run.check(run.host.rng().fill(run.host.rng().self, &own, nullptr), "rng.fill");
  run.check(run.synchronize(nullptr), "stream.synchronize");
  const std::vector<Out> values = run.read(buffer, count + 1);
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const Out want = sdk::value_at(generator, request.key, request.subsequence, request.offset + i);
    wrong += std::memcmp(&values[i + 1], &want, sizeof want) != 0 ? 1 : 0;
  }
  run.require(wrong == 0,
              sdk::text("kind %d, dtype %d, offset %llu: %zu of %zu values are not the host's", request.kind,
                        request.dtype, static_cast<unsigned long long>(request.offset), wrong, count));
  run.check(run.host.memory().release(run.host.memory().self, 0, buffer), "memory.release");
}

void random_numbers_have_the_hosts_bits(Case& run) {
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.count = 300'001;
  request.key = 0x0123456789abcdef;
  request.subsequence = 0xfedcba9876543210;
  request.low = -0.75;
  request.high = 1.5;
  request.integer_low = -1000;
  request.integer_high = 123456;
  const auto last = ~uint64_t{0};
  for (request.kind = CONCORD_RNG_BITS; request.kind <= CONCORD_RNG_INTEGER; ++request.kind) {
    const bool integral = request.kind == CONCORD_RNG_BITS || request.kind == CONCORD_RNG_INTEGER;
    for (const concord_dtype dtype : integral ? std::vector<concord_dtype>{CONCORD_DTYPE_I32, CONCORD_DTYPE_I64}
                                              : std::vector<concord_dtype>{CONCORD_DTYPE_F32, CONCORD_DTYPE_F64,
                                                                           CONCORD_DTYPE_BF16, CONCORD_DTYPE_F16}) {
      request.dtype = dtype;
      for (const uint64_t offset : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 34) + 1, last - 1000}) {
        request.offset = offset;
        sdk::visit_rng(request, [&](const auto& generator) { compare_with_host(run, request, generator); });
      }
    }
  }
}

void a_graph_replays_its_work(Case& run) {
  const auto& graph = extension<concord_graph_table>(run, CONCORD_GRAPH_TABLE);
  const concord_memory_table& memory = run.host.memory();
  const concord_stream stream = run.new_stream();
  char* first = run.new_array(std::vector<char>(1000, 'a'));
  char* second = run.new_array(std::vector<char>(1000, 'b'));
  concord_graph made = nullptr;
  run.check(graph.begin_capture(graph.self, stream), "graph.begin_capture");
  run.check(memory.fill_on_stream(memory.self, first, 'x', 1000, stream), "memory.fill_on_stream");
  run.check(memory.copy_on_stream(memory.self, second, first, 1000, CONCORD_COPY_DEVICE_TO_DEVICE, stream),
            "memory.copy_on_stream");
  run.check(graph.end_capture(graph.self, stream, &made), "graph.end_capture");
  run.require(run.read(second, 1)[0] == 'b', "the capture ran its work");
  for (int i = 0; i < 3; ++i) run.check(graph.launch(graph.self, made, stream), "graph.launch");
  run.check(run.synchronize(stream), "stream.synchronize");
  run.require(run.read(second, 1000) == std::vector<char>(1000, 'x'), "the launch did not do its work");
  run.check(graph.destroy(graph.self, made), "graph.destroy");
}

void a_capture_that_goes_wrong_leaves_the_stream_usable(Case& run) {
  const auto& graph = extension<concord_graph_table>(run, CONCORD_GRAPH_TABLE);
  const concord_stream stream = run.new_stream();
  concord_graph made = nullptr;
  run.check(graph.begin_capture(graph.self, stream), "graph.begin_capture");
  run.require(run.synchronize(stream) != CONCORD_STATUS_OK, "waiting for a stream that captures was allowed");
  run.require(graph.end_capture(graph.self, stream, &made) != CONCORD_STATUS_OK, "a broken capture gave a graph");
  run.check(run.synchronize(stream), "stream.synchronize after the broken capture");
}

void the_profiler_takes_ranges(Case& run) {
  const auto& profiler = extension<concord_profiler_table>(run, CONCORD_PROFILER_TABLE);
  run.check(profiler.start(profiler.self), "profiler.start");
  run.check(profiler.range_push(profiler.self, "a range"), "profiler.range_push");
  run.check(profiler.mark(profiler.self, "a point"), "profiler.mark");
  run.check(profiler.range_pop(profiler.self), "profiler.range_pop");
  run.check(profiler.range_pop(profiler.self), "profiler.range_pop", CONCORD_STATUS_FAILED_PRECONDITION);
  run.check(profiler.stop(profiler.self), "profiler.stop");
}

struct Listed {
  std::vector<concord_activity> work;
  std::vector<std::string> names;
};

// A fill, a kernel (random numbers) and a copy of one stream, in this order and within the time that the host took.
void the_devices_work_is_listed(Case& run) {
  if (run.host.plugin()->find_table(run.host.plugin()->self, CONCORD_ACTIVITY_TABLE) == nullptr) {
    std::printf("  the plugin was built without CUPTI's headers\n");
    return;
  }
  const auto& activity = extension<concord_activity_table>(run, CONCORD_ACTIVITY_TABLE);
  const concord_status started = activity.start(activity.self);
  if (started == CONCORD_STATUS_UNAVAILABLE) {  // nothing else needs CUPTI
    std::printf("  %s\n", sdk::TestHost::detail().c_str());
    return;
  }
  run.check(started, "activity.start");
  const concord_memory_table& memory = run.host.memory();
  const concord_stream stream = run.new_stream();
  float* numbers = run.new_array(std::vector<float>(1000, 1.0f));
  std::vector<float> host(1000);
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = CONCORD_RNG_UNIFORM;
  request.dtype = CONCORD_DTYPE_F32;
  request.destination = numbers;
  request.count = 1000;
  request.high = 1.0;
  const auto now = [] { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  run.check(run.synchronize(stream), "stream.synchronize");
  const int64_t begin = now();
  run.check(memory.fill_on_stream(memory.self, numbers, 0, 4000, stream), "memory.fill_on_stream");
  run.check(run.host.rng().fill(run.host.rng().self, &request, stream), "rng.fill");
  run.check(memory.copy_on_stream(memory.self, host.data(), numbers, 4000, CONCORD_COPY_DEVICE_TO_HOST, stream),
            "memory.copy_on_stream");
  run.check(run.synchronize(stream), "stream.synchronize");
  const int64_t end = now();
  Listed listed;
  int64_t dropped = -1;
  const auto keep = [](void* user, const concord_activity* one) {
    static_cast<Listed*>(user)->work.push_back(*one);
    static_cast<Listed*>(user)->names.emplace_back(one->name);
  };
  run.check(activity.stop(activity.self, keep, &listed, &dropped), "activity.stop");
  std::string all;
  for (size_t i = 0; i < listed.work.size(); ++i) {
    all += " " + listed.names[i] + " at " + std::to_string(listed.work[i].begin_ns - begin) + " ns;";
  }
  run.require(listed.work.size() >= 3 && dropped == 0, "not all work is listed:" + all);
  const concord_activity* last = listed.work.data() + listed.work.size() - 3;  // before them: what new_array did
  const concord_activity_kind kinds[] = {CONCORD_ACTIVITY_FILL, CONCORD_ACTIVITY_KERNEL, CONCORD_ACTIVITY_COPY};
  for (int i = 0; i < 3; ++i) {
    run.require(last[i].kind == kinds[i] && last[i].stream == last[0].stream, "other work is listed:" + all);
    // 1 ms: how well CUPTI matches the device's clock with the host's is not documented.
    run.require(last[i].begin_ns > begin - 1'000'000 && last[i].end_ns < end + 1'000'000,
                "times are not the host's:" + all);
  }
}

// ----------------------------------------------------------------------------------------------------------- two ranks

concord_status queue_sum(Case& run, concord_comm comm, float* data, concord_stream stream) {
  const concord_comm_table& c = run.host.comm();
  return c.all_reduce(c.self, comm, data, data, 1, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, stream);
}

void sum_once(Case& run, concord_comm comm, concord_stream stream) {
  float* data = run.new_array(std::vector<float>{static_cast<float>(run.rank + 1)});
  run.check(queue_sum(run, comm, data, stream), "comm.all_reduce");
  run.check(run.synchronize(stream), "stream.synchronize");
  run.require(run.read(data, 1)[0] == 3.0f, "1 + 2 is not 3");
}

void a_graph_replays_a_collective(Case& run) {
  const auto& graph = extension<concord_graph_table>(run, CONCORD_GRAPH_TABLE);
  const concord_comm comm = run.connect("graph", kLong);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  float* data = run.new_array(std::vector<float>{1.0f});
  concord_graph made = nullptr;
  run.check(graph.begin_capture(graph.self, stream), "graph.begin_capture");
  run.check(queue_sum(run, comm, data, stream), "comm.all_reduce");
  run.check(graph.end_capture(graph.self, stream, &made), "graph.end_capture");
  for (int i = 0; i < 5; ++i) run.check(graph.launch(graph.self, made, stream), "graph.launch");
  run.check(run.synchronize(stream), "stream.synchronize");
  run.require(run.read(data, 1)[0] == 32.0f, sdk::text("1 doubled five times is %g", run.read(data, 1)[0]));
  run.check(graph.destroy(graph.self, made), "graph.destroy");
  run.check(run.host.comm().destroy(run.host.comm().self, comm), "comm.destroy");
}

void a_silent_peer_is_a_timeout(Case& run) {
  const concord_comm comm = run.connect("silent", kShort);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  float* data = run.new_array(std::vector<float>{1.0f});
  if (run.rank == 0) {
    run.check(queue_sum(run, comm, data, stream), "comm.all_reduce");
    run.check(run.synchronize(stream), "stream.synchronize", CONCORD_STATUS_TIMEOUT);
    run.check(run.synchronize(stream), "the next stream.synchronize");
    run.check(queue_sum(run, comm, data, stream), "a later comm.all_reduce", CONCORD_STATUS_TIMEOUT);
    run.check(run.host.comm().destroy(run.host.comm().self, comm), "comm.destroy");
  }
  run.release_the_others();
}

// The queue of launches is finite: after a stuck operation the host itself blocks inside CUDA.
void a_full_queue_behind_a_silent_peer_is_a_timeout(Case& run) {
  const concord_comm comm = run.connect("full", kShort);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  if (run.rank == 0) {
    const concord_memory_table& memory = run.host.memory();
    float* data = run.new_array(std::vector<float>{1.0f});
    run.check(queue_sum(run, comm, data, stream), "comm.all_reduce");
    for (int i = 0; i < 20'000; ++i) {
      run.check(memory.fill_on_stream(memory.self, data, 0, 4, stream), "memory.fill_on_stream");
    }
    run.check(run.synchronize(stream), "stream.synchronize", CONCORD_STATUS_TIMEOUT);
  }
  run.release_the_others();
}

// As above, with the host stuck in an operation of the communicator itself: NCCL must not be freed under it.
void operations_without_end_behind_a_silent_peer_are_a_timeout(Case& run) {
  const concord_comm comm = run.connect("endless", kShort);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  if (run.rank == 0) {
    float* data = run.new_array(std::vector<float>{1.0f});
    concord_status status = CONCORD_STATUS_OK;
    for (int i = 0; i < 20'000 && status == CONCORD_STATUS_OK; ++i) status = queue_sum(run, comm, data, stream);
    if (status == CONCORD_STATUS_OK) status = run.synchronize(stream);
    run.check(status, "20,000 times comm.all_reduce", CONCORD_STATUS_TIMEOUT);
    run.check(run.host.comm().destroy(run.host.comm().self, comm), "comm.destroy");
  }
  run.release_the_others();
}

// NCCL frees device memory when it aborts, which waits for all kernels of the device: also for those of the other one.
void two_stuck_communicators_both_end(Case& run) {
  const concord_comm first = run.connect("first", kShort);
  const concord_comm second = run.connect("second", kShort);
  const concord_stream one = run.new_stream();
  const concord_stream two = run.new_stream();
  sum_once(run, first, one);
  sum_once(run, second, two);
  if (run.rank == 0) {
    float* data = run.new_array(std::vector<float>{1.0f, 1.0f});
    run.check(queue_sum(run, first, data, one), "comm.all_reduce");
    run.check(queue_sum(run, second, data + 1, two), "comm.all_reduce");
    run.check(run.synchronize(one), "stream.synchronize", CONCORD_STATUS_TIMEOUT);
    run.check(run.synchronize(two), "stream.synchronize", CONCORD_STATUS_TIMEOUT);
    run.check(run.host.comm().destroy(run.host.comm().self, first), "comm.destroy");
    run.check(run.host.comm().destroy(run.host.comm().self, second), "comm.destroy");
  }
  run.release_the_others();
}

// The first transfer between two ranks connects them, and waits for the peer inside the call.
void a_first_transfer_whose_peer_never_comes_is_a_timeout(Case& run) {
  const concord_comm comm = run.connect("transfer", kShort);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  if (run.rank == 0) {
    const concord_comm_table& c = run.host.comm();
    float* data = run.new_array(std::vector<float>{1.0f});
    const concord_p2p_item item = {CONCORD_P2P_RECV, 1, data, 1, CONCORD_DTYPE_F32, 0};
    concord_status status = c.batch_p2p(c.self, comm, &item, 1, stream);
    if (status == CONCORD_STATUS_OK) status = run.synchronize(stream);
    run.check(status, "comm.batch_p2p", CONCORD_STATUS_TIMEOUT);
    run.check(c.destroy(c.self, comm), "comm.destroy");
  }
  run.release_the_others();
}

void a_split_whose_peer_never_comes_is_a_timeout(Case& run) {
  const concord_comm comm = run.connect("parent", kShort);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  if (run.rank == 0) {
    const concord_comm_table& c = run.host.comm();
    const int32_t ranks[] = {1, 0};
    concord_comm child = nullptr;
    run.check(c.split(c.self, comm, ranks, 2, nullptr, &child), "comm.split", CONCORD_STATUS_TIMEOUT);
    run.check(c.destroy(c.self, comm), "comm.destroy");
  }
  run.release_the_others();
}

void a_killed_peer_is_lost(Case& run) {
  const concord_comm comm = run.connect("killed", 5 * kShort);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  if (run.rank == 1) _exit(0);
  float* data = run.new_array(std::vector<float>{1.0f});
  concord_status status = queue_sum(run, comm, data, stream);
  if (status == CONCORD_STATUS_OK) status = run.synchronize(stream);
  std::printf("    status %d: %s\n", status, sdk::TestHost::detail().c_str());
  run.require(status == CONCORD_STATUS_PEER_LOST || status == CONCORD_STATUS_TIMEOUT,
              sdk::text("status %d is neither PEER_LOST nor TIMEOUT", status));
  run.check(run.host.comm().destroy(run.host.comm().self, comm), "comm.destroy");
}

void an_abort_frees_a_waiting_stream(Case& run) {
  const concord_comm comm = run.connect("aborted", kLong);
  const concord_stream stream = run.new_stream();
  sum_once(run, comm, stream);
  if (run.rank == 0) {
    const concord_comm_table& c = run.host.comm();
    float* data = run.new_array(std::vector<float>{1.0f});
    run.check(queue_sum(run, comm, data, stream), "comm.all_reduce");
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      run.check(c.abort(c.self, comm), "comm.abort");
    });
    run.check(run.synchronize(stream), "stream.synchronize", CONCORD_STATUS_ABORTED);
    aborter.join();
    run.check(c.destroy(c.self, comm), "comm.destroy");
  }
  run.release_the_others();
}

void a_destroy_does_not_wait_for_a_peer_that_stays(Case& run) {
  const concord_comm comm = run.connect("destroyed", kLong);
  sum_once(run, comm, run.new_stream());
  if (run.rank == 0) run.check(run.host.comm().destroy(run.host.comm().self, comm), "comm.destroy");
  run.release_the_others();
}

const std::vector<NamedCase> kCases = {
    {"DevicesAreDescribed", 1, devices_are_described},
    {"RandomNumbersHaveTheHostsBits", 1, random_numbers_have_the_hosts_bits},
    {"AGraphReplaysItsWork", 1, a_graph_replays_its_work},
    {"ACaptureThatGoesWrongLeavesTheStreamUsable", 1, a_capture_that_goes_wrong_leaves_the_stream_usable},
    {"TheProfilerTakesRanges", 1, the_profiler_takes_ranges},
    {"TheDevicesWorkIsListed", 1, the_devices_work_is_listed},
    {"AGraphReplaysACollective", 2, a_graph_replays_a_collective},
    {"ASilentPeerIsATimeout", 2, a_silent_peer_is_a_timeout},
    {"AFullQueueBehindASilentPeerIsATimeout", 2, a_full_queue_behind_a_silent_peer_is_a_timeout},
    {"OperationsWithoutEndBehindASilentPeerAreATimeout", 2, operations_without_end_behind_a_silent_peer_are_a_timeout},
    {"TwoStuckCommunicatorsBothEnd", 2, two_stuck_communicators_both_end},
    {"AFirstTransferWhosePeerNeverComesIsATimeout", 2, a_first_transfer_whose_peer_never_comes_is_a_timeout},
    {"ASplitWhosePeerNeverComesIsATimeout", 2, a_split_whose_peer_never_comes_is_a_timeout},
    {"AKilledPeerIsLost", 2, a_killed_peer_is_lost},
    {"AnAbortFreesAWaitingStream", 2, an_abort_frees_a_waiting_stream},
    {"ADestroyDoesNotWaitForAPeerThatStays", 2, a_destroy_does_not_wait_for_a_peer_that_stays},
};

}  // namespace
}  // namespace concord::device

int main(int argc, char** argv) { return concord::device::run_cases(argc, argv, concord::device::kCases); }
