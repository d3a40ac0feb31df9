// The plugin compared with raw calls of CUDA and NCCL, in the same run, alternating: the extra cost of a call through
// the tables, and whether a large copy is as fast. Needs a device, the toolkit and NCCL. Rows as ./run bench prints
// them: {name, ours, peer, unit, ratio, goal, met}.
#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/cuda/device/harness.h"
#include "backends/cuda/nccl/nccl.h"
#include "backends/cuda/status.h"

namespace concord::device {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::check_cuda;

struct Row {
  std::string name;
  double ours = 0;
  double peer = 0;
  std::string unit;
  std::string goal;
  bool met = false;
};

std::vector<Row> rows;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Microseconds per call of |call|, made |calls| times. Waiting for what it queues is not measured.
double time_calls(int calls, const std::function<void()>& call) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const double micros = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return micros / calls;
}

// In turns, so that what disturbs one disturbs the other; medians.
void compare_calls(const std::string& name, double allowed_us, int calls, const std::function<void()>& ours,
                   const std::function<void()>& raw) {
  constexpr int kRounds = 41;
  time_calls(calls, ours);
  time_calls(calls, raw);
  std::vector<double> our_times;
  std::vector<double> raw_times;
  for (int round = 0; round < kRounds; ++round) {
    raw_times.push_back(time_calls(calls, raw));
    our_times.push_back(time_calls(calls, ours));
  }
  const double mine = median(our_times);
  const double theirs = median(raw_times);
  rows.push_back({name, mine, theirs, "us", sdk::text("<= peer + %g us", allowed_us), mine <= theirs + allowed_us});
}

// -------------------------------------------------------------------------------------------------- streams and events

void compare_streams_and_events(const Case& run) {
  constexpr double kAllowed = 0.3;
  constexpr int kCalls = 500;
  const concord_stream_table& streams = run.host.stream();
  const concord_event_table& events = run.host.event();
  const concord_stream stream = run.new_stream();
  const auto raw_stream = reinterpret_cast<cudaStream_t>(stream);
  concord_event event = nullptr;
  run.check(events.create(events.self, 0, 0, &event), "event.create");
  const auto raw_event = reinterpret_cast<cudaEvent_t>(event);
  int32_t done = 0;
  compare_calls(
      "cuda/event.record", kAllowed, kCalls, [&] { events.record(events.self, event, stream); },
      [&] { cudaEventRecord(raw_event, raw_stream); });
  compare_calls(
      "cuda/event.query", kAllowed, kCalls, [&] { events.query(events.self, event, &done); },
      [&] { cudaEventQuery(raw_event); });
  compare_calls(
      "cuda/event.synchronize", kAllowed, kCalls, [&] { events.synchronize(events.self, event); },
      [&] { cudaEventSynchronize(raw_event); });
  compare_calls(
      "cuda/stream.wait_event", kAllowed, kCalls, [&] { streams.wait_event(streams.self, stream, event); },
      [&] { cudaStreamWaitEvent(raw_stream, raw_event, 0); });
  compare_calls(
      "cuda/stream.query", kAllowed, kCalls, [&] { streams.query(streams.self, stream, &done); },
      [&] { cudaStreamQuery(raw_stream); });
  compare_calls(
      "cuda/stream.synchronize", kAllowed, kCalls, [&] { streams.synchronize(streams.self, stream); },
      [&] { cudaStreamSynchronize(raw_stream); });
  compare_calls(
      "cuda/event.create+destroy", 2 * kAllowed, kCalls,
      [&] {
        concord_event made = nullptr;
        events.create(events.self, 0, 0, &made);
        events.destroy(events.self, made);
      },
      [] {
        cudaEvent_t made = nullptr;
        cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
        cudaEventDestroy(made);
      });
}

// -------------------------------------------------------------------------------------------------------------- copies

double gigabytes_a_second(int64_t bytes, cudaStream_t stream, const std::function<void()>& copy) {
  cudaEvent_t start = nullptr;
  cudaEvent_t end = nullptr;
  check_cuda(cudaEventCreateWithFlags(&start, cudaEventDefault), "cudaEventCreateWithFlags");
  check_cuda(cudaEventCreateWithFlags(&end, cudaEventDefault), "cudaEventCreateWithFlags");
  check_cuda(cudaEventRecord(start, stream), "cudaEventRecord");
  copy();
  check_cuda(cudaEventRecord(end, stream), "cudaEventRecord");
  check_cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, start, end), "cudaEventElapsedTime");
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return static_cast<double>(bytes) / static_cast<double>(milliseconds) / 1e6;
}

void compare_copy(const Case& run, const std::string& name, void* to, const void* from, int64_t bytes,
                  concord_copy_kind kind, cudaMemcpyKind raw_kind) {
  const concord_memory_table& memory = run.host.memory();
  const concord_stream stream = run.new_stream();
  const auto raw_stream = reinterpret_cast<cudaStream_t>(stream);
  std::vector<double> ours;
  std::vector<double> raw;
  for (int round = 0; round < 11; ++round) {
    raw.push_back(gigabytes_a_second(
        bytes, raw_stream, [&] { cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), raw_kind, raw_stream); }));
    ours.push_back(gigabytes_a_second(bytes, raw_stream,
                                      [&] { memory.copy_on_stream(memory.self, to, from, bytes, kind, stream); }));
  }
  rows.push_back({name, median(ours), median(raw), "GB/s", ">= 0.99 of peer", median(ours) >= 0.99 * median(raw)});
}

void compare_copies(const Case& run, int64_t bytes) {
  const int64_t pinned = bytes / 4;
  const concord_memory_table& memory = run.host.memory();
  const auto size = [](int64_t count) { return sdk::text("/%lld MiB", static_cast<long long>(count >> 20)); };
  void* first = nullptr;
  void* second = nullptr;
  void* host = nullptr;
  run.check(memory.allocate(memory.self, 0, bytes, &first), "memory.allocate");
  run.check(memory.allocate(memory.self, 0, bytes, &second), "memory.allocate");
  run.check(memory.allocate_host(memory.self, pinned, &host), "memory.allocate_host");
  compare_copy(run, "cuda/copy/device to device" + size(bytes), second, first, bytes, CONCORD_COPY_DEVICE_TO_DEVICE,
               cudaMemcpyDeviceToDevice);
  compare_copy(run, "cuda/copy/host to device" + size(pinned), first, host, pinned, CONCORD_COPY_HOST_TO_DEVICE,
               cudaMemcpyHostToDevice);
  compare_copy(run, "cuda/copy/device to host" + size(pinned), host, first, pinned, CONCORD_COPY_DEVICE_TO_HOST,
               cudaMemcpyDeviceToHost);
  memory.release(memory.self, 0, first);
  memory.release(memory.self, 0, second);
  memory.release_host(memory.self, host);
}

// --------------------------------------------------------------------------------------------------------- collectives

// A raw communicator of the ranks of |comm|, made as the documentation of NCCL shows it.
ncclComm_t raw_communicator(const Case& run, const cuda::Nccl& nccl, concord_comm comm, concord_stream stream) {
  const concord_comm_table& c = run.host.comm();
  ncclUniqueId id{};
  if (run.rank == 0) check_nccl(nccl, nccl.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr);
  char* shared = run.new_array(std::vector<char>(id.internal, id.internal + sizeof id.internal));
  run.check(c.broadcast(c.self, comm, shared, shared, sizeof id.internal, CONCORD_DTYPE_I8, 0, stream),
            "comm.broadcast");
  run.check(run.synchronize(stream), "stream.synchronize");
  const std::vector<char> told = run.read(shared, sizeof id.internal);
  std::memcpy(id.internal, told.data(), sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t raw = nullptr;
  check_nccl(nccl, nccl.ncclCommInitRankConfig(&raw, run.world, id, run.rank, &config), "ncclCommInitRankConfig",
             nullptr);
  return raw;
}

void compare_collectives(const Case& run, const cuda::Nccl& nccl) {
  constexpr double kAllowed = 1.0;
  constexpr int kCalls = 50;  // few: with more, the queue of launches fills up and the device is measured
  const concord_comm_table& c = run.host.comm();
  const concord_comm comm = run.connect("bench", 60'000);
  const concord_stream stream = run.new_stream();
  const auto raw_stream = reinterpret_cast<cudaStream_t>(stream);
  ncclComm_t raw = raw_communicator(run, nccl, comm, stream);
  float* data = run.new_array(std::vector<float>(64));
  float* other = run.new_array(std::vector<float>(64));
  const std::string suffix = sdk::text("/4 B/world %d", run.world);
  const int32_t peer = run.world - 1 - run.rank;
  compare_calls(
      "cuda/all_reduce" + suffix, kAllowed, kCalls,
      [&] { c.all_reduce(c.self, comm, data, other, 1, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, stream); },
      [&] { nccl.ncclAllReduce(data, other, 1, ncclFloat32, ncclSum, raw, raw_stream); });
  compare_calls(
      "cuda/broadcast" + suffix, kAllowed, kCalls,
      [&] { c.broadcast(c.self, comm, data, other, 1, CONCORD_DTYPE_F32, 0, stream); },
      [&] { nccl.ncclBroadcast(data, other, 1, ncclFloat32, 0, raw, raw_stream); });
  compare_calls(
      "cuda/all_gather" + suffix, kAllowed, kCalls,
      [&] { c.all_gather(c.self, comm, data, other, 1, CONCORD_DTYPE_F32, stream); },
      [&] { nccl.ncclAllGather(data, other, 1, ncclFloat32, raw, raw_stream); });
  const concord_p2p_item items[] = {{CONCORD_P2P_SEND, peer, data, 1, CONCORD_DTYPE_F32, 0},
                                    {CONCORD_P2P_RECV, peer, other, 1, CONCORD_DTYPE_F32, 0}};
  compare_calls(
      "cuda/batch_p2p" + suffix, kAllowed, kCalls, [&] { c.batch_p2p(c.self, comm, items, 2, stream); },
      [&] {
        nccl.ncclGroupStart();
        nccl.ncclSend(data, 1, ncclFloat32, peer, raw, raw_stream);
        nccl.ncclRecv(other, 1, ncclFloat32, peer, raw, raw_stream);
        nccl.ncclGroupEnd();
      });
  nccl.ncclCommAbort(raw);
  run.check(c.destroy(c.self, comm), "comm.destroy");
}

// --------------------------------------------------------------------------------------------------------- the program

void print_json() {
  const char* separator = "[\n";
  for (const Row& row : rows) {
    std::printf(
        "%s  {\"name\": \"%s\", \"ours\": %.6g, \"peer\": %.6g, \"unit\": \"%s\", \"ratio\": %.4f, \"goal\": "
        "\"%s\", \"met\": %s}",
        separator, row.name.c_str(), row.ours, row.peer, row.unit.c_str(), row.ours / row.peer, row.goal.c_str(),
        row.met ? "true" : "false");
    separator = ",\n";
  }
  std::printf("\n]\n");
}

void print_table() {
  for (const Row& row : rows) {
    std::printf("%-36s ours %10.3f  peer %10.3f %-5s ratio %6.3f  goal %-18s %s\n", row.name.c_str(), row.ours,
                row.peer, row.unit.c_str(), row.ours / row.peer, row.goal.c_str(), row.met ? "met" : "NOT MET");
  }
}

// Rows in flight from a rank's process to its parent's.
void save_rows(const std::string& file) {
  std::ofstream out(file);
  for (const Row& row : rows) {
    out << row.name << '\n'
        << row.ours << ' ' << row.peer << ' ' << row.unit << ' ' << row.met << '\n'
        << row.goal << '\n';
  }
}

void load_rows(const std::string& file) {
  std::ifstream in(file);
  Row row;
  while (std::getline(in, row.name) && in >> row.ours >> row.peer >> row.unit >> row.met && in.ignore() &&
         std::getline(in, row.goal)) {
    rows.push_back(row);
  }
}

// The bench's own look at NCCL has the settings that the plugin has.
const concord_host* bench_host() {
  static const concord_host host = {
      {sizeof(concord_host), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
      nullptr,
      [](void*, const char*) {},
      [](void*, concord_log_level, const char*) {},
      [](void*, const char* name) -> const char* {
        return std::strcmp(name, "cuda.nccl") == 0 ? std::getenv("CONCORD_CUDA_NCCL") : nullptr;
      },
  };
  return &host;
}

struct Options {
  std::string plugin;
  std::string files;
  int rank = -1;  // rank (of two) of a process that was started for it
  int64_t copy_bytes = int64_t{4} << 30;
  bool json = false;
  bool ignore_goals = false;  // the exit code reports only whether everything ran
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") {
      options.json = true;
      continue;
    }
    if (name == "--ignore_goals") {
      options.ignore_goals = true;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    if (name == "--plugin")
      options.plugin = argv[++i];
    else if (name == "--copy_mib")
      options.copy_bytes = std::stoll(argv[++i]) << 20;
    else if (name == "--files")
      options.files = argv[++i];
    else if (name == "--rank")
      options.rank = std::stoi(argv[++i]);
    else
      throw std::invalid_argument("unknown option " + name);
  }
  if (options.plugin.empty()) throw std::invalid_argument("--plugin is missing");
  return options;
}

// What this process measures: everything with one rank, or the collectives as one of two.
void measure(const Options& options) {
  if (const char* nccl = std::getenv("CONCORD_CUDA_NCCL")) sdk::TestHost::set_config("cuda.nccl", nccl);
  const sdk::TestHost host(options.plugin.c_str());
  if (host.status() != CONCORD_STATUS_OK) throw std::runtime_error("no plugin: " + sdk::TestHost::detail());
  const bool alone = options.rank < 0;
  const Case run(host, alone ? 0 : options.rank, alone ? 1 : 2, options.files);
  sdk::host_slot() = bench_host();
  const cuda::Nccl nccl = cuda::load_nccl();  // the one that the plugin has loaded
  if (alone) {
    compare_streams_and_events(run);
    compare_copies(run, options.copy_bytes);
  }
  compare_collectives(run, nccl);
}

// Starts this program as both ranks of two on one device. Rank 0 leaves the rows.
bool run_two_ranks(const char* program, const Options& options) {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
      setenv("NCCL_SOCKET_IFNAME", "lo", 1);
      setenv("NCCL_IB_DISABLE", "1", 1);
      execl(program, program, "--plugin", options.plugin.c_str(), "--rank", std::to_string(rank).c_str(), "--files",
            options.files.c_str(), nullptr);
      _exit(127);
    }
    ranks.push_back(child);
  }
  bool good = true;
  for (const pid_t rank : ranks) {
    int status = 0;
    good = waitpid(rank, &status, 0) == rank && status == 0 && good;
  }
  return good;
}

int bench(int argc, char** argv) {
  Options options = parse(argc, argv);
  if (options.rank >= 0) {
    measure(options);
    if (options.rank == 0) save_rows(options.files + ".rows");
    return 0;
  }
  options.files = "/tmp/concord-cuda-bench-" + std::to_string(getpid());
  const bool good = run_two_ranks(argv[0], options);  // first, while this process has no device of its own
  measure(options);
  load_rows(options.files + ".rows");
  unlink((options.files + ".rows").c_str());
  options.json ? print_json() : print_table();
  const bool met = std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.met; });
  return good && (met || options.ignore_goals) ? 0 : 1;
}

}  // namespace
}  // namespace concord::device

int main(int argc, char** argv) {
  try {
    return concord::device::bench(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\nusage: %s --plugin libconcord_cuda.so [--copy_mib 4096] [--json] [--ignore_goals]\n",
                 error.what(), argv[0]);
    return 2;
  }
}
