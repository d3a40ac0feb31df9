// The bridge (platform/bridge) between a device and a process on the host, compared with what the device's copies to
// and from pinned host memory allow, in the same run: bridge_bench [part of a name] [--json]
//
// This process has the device of CONCORD_PLATFORM, a second one is on cpu. ours and peer are GB/s of the data that
// crosses; rounds of both alternate, and the median counts. On the cpu plugin a pinned copy is a memcpy.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "platform/bridge/bridge.h"
#include "platform/cpp/concord.hpp"
#include "tests/performance/bench_program.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBytes = int64_t{64} << 20;
constexpr int kRounds = 7, kWarmUps = 2;
constexpr double kGoal = 0.6;
constexpr int32_t kDeviceRank = 0, kHostRank = 1;

struct Task {
  const char* name;
  void (*call)(const Communicator& comm, const Stream& queue, void* data);
  CopyKind copy;  // the copy between the device and host memory that it needs
};

// Transfers between pipeline stages, and collectives, which are divided into chunks.
void transfer(const Communicator& comm, const Stream& queue, void* data, int32_t from) {
  const concord_p2p_kind kind = comm.rank() == from ? CONCORD_P2P_SEND : CONCORD_P2P_RECV;
  const concord_p2p_item items[] = {{kind, 1 - comm.rank(), data, kBytes, CONCORD_DTYPE_U8, 0}};
  comm.batch_p2p(queue, items);
}

constexpr Task kTasks[] = {
    {"send", [](const Communicator& c, const Stream& q, void* d) { transfer(c, q, d, kDeviceRank); },
     CopyKind::kDeviceToHost},
    {"receive", [](const Communicator& c, const Stream& q, void* d) { transfer(c, q, d, kHostRank); },
     CopyKind::kHostToDevice},
    {"broadcast from the device",
     [](const Communicator& c, const Stream& q, void* d) { c.broadcast(q, d, d, kBytes, DType::kU8, kDeviceRank); },
     CopyKind::kDeviceToHost},
    {"broadcast to the device",
     [](const Communicator& c, const Stream& q, void* d) { c.broadcast(q, d, d, kBytes, DType::kU8, kHostRank); },
     CopyKind::kHostToDevice},
    {"all_reduce",
     [](const Communicator& c, const Stream& q, void* d) {
       c.all_reduce(q, d, d, kBytes / 4, DType::kF32, ReduceOp::kSum);
     },
     CopyKind::kDeviceToHost},
};

double rate(Clock::time_point start) {
  return static_cast<double>(kBytes) / 1e9 / std::chrono::duration<double>(Clock::now() - start).count();
}

// The rounds of one rank. Returns GB/s of each, of the bridge and of the copy, which only the device's rank measures.
struct Rates {
  std::vector<double> bridge, copy;
};
Rates run(const Task& task, const Device& device, const Communicator& comm, const Stream& queue) {
  const Buffer data(device, kBytes);
  const HostBuffer pinned(device.platform(), kBytes);
  const Stream copies(device);
  void* const to = task.copy == CopyKind::kDeviceToHost ? pinned.data() : data.data();
  const void* const from = task.copy == CopyKind::kDeviceToHost ? data.data() : pinned.data();
  Rates rates;
  for (int round = 0; round < kRounds + kWarmUps; ++round) {
    comm.barrier(queue);
    queue.synchronize();
    const auto begin = Clock::now();
    task.call(comm, queue, data.data());
    comm.barrier(queue);  // until the other rank has the data
    queue.synchronize();
    if (round >= kWarmUps) rates.bridge.push_back(rate(begin));
    if (comm.rank() != kDeviceRank) continue;
    const auto copied = Clock::now();
    copy(copies, to, from, kBytes, task.copy);
    copies.synchronize();
    if (round >= kWarmUps) rates.copy.push_back(rate(copied));
  }
  return rates;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void run_tasks(const Device& device, int32_t rank, const UniqueId& id, const bench::Options& options) {
  device.make_current();
  const Device bridge = bridge::bridge_device(device);
  const Communicator comm(bridge, 2, rank, id, {"bridge_bench", std::chrono::minutes(1)});
  const Stream queue(bridge);
  nlohmann::json rows = nlohmann::json::array();
  for (const Task& task : kTasks) {
    const std::string name = std::string(device.platform().label()) + "/" + task.name + "/64MiB";
    if (std::string(task.name).find(options.part) == std::string::npos) continue;
    const Rates rates = run(task, device, comm, queue);
    if (rank != kDeviceRank) continue;
    const double ours = median(rates.bridge), peer = median(rates.copy);
    rows.push_back({{"name", name},
                    {"ours", ours},
                    {"peer", peer},
                    {"unit", "GB/s"},
                    {"ratio", ours / peer},
                    {"goal", kGoal},
                    {"met", ours / peer >= kGoal}});
    if (!options.json) {
      std::printf("%-40s %7.2f GB/s, pinned copy %7.2f GB/s, ratio %.2f (goal %.1f)\n", name.c_str(), ours, peer,
                  ours / peer, kGoal);
    }
  }
  if (options.json && rank == kDeviceRank) std::printf("%s\n", nlohmann::json{{"rows", rows}}.dump(1).c_str());
}

// The child is started before any platform is opened: no driver works in a fork.
int main_function(const bench::Options& options) {
  int channel[2];
  if (::pipe(channel) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    UniqueId id(static_cast<size_t>(4) << 10);
    const ssize_t bytes = ::read(channel[0], id.data(), id.size());
    if (bytes <= 0) return 1;
    id.resize(static_cast<size_t>(bytes));
    run_tasks({open_platform(bridge::kHostPlatform), 0}, kHostRank, id, options);
    return 0;
  }
  const Device device(current_platform(), 0);
  const UniqueId id = create_unique_id(bridge::bridge_device(device).platform());
  if (::write(channel[1], id.data(), id.size()) != static_cast<ssize_t>(id.size())) return 1;
  run_tasks(device, kDeviceRank, id, options);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  try {
    return concord::main_function(concord::bench::read_options(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bridge_bench: %s\n", error.what());
    return 1;
  }
}
