// The cost for a job's store when many ranks join: threads of a few processes that do what ranks do in initialize, with
// the same code: connect with a token, announce the process, join the barrier, look up the server of the store.
//
//   store_bench [part of a row's name] [--json]      64 to 4,096 ranks; the peer is c10d's TCPStore used as
//                                                    init_process_group does: connect, add to a counter, wait
//
// Descriptors: two per rank at the server; ulimit -n must allow 10,000.
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <latch>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "core/mesh/peers.h"
#include "core/mesh/store/rendezvous.h"
#include "core/mesh/store/store_client.h"
#include "tests/performance/bench_program.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeout{300};
constexpr int kMinWorld = 64;
constexpr int kMaxWorld = 4096;
constexpr int kRanksPerProcess = 64;  // a process of thousands of threads would measure the kernel's thread lists

struct Join {
  double seconds = 0;
  double processor_seconds = 0;  // sum over ranks and server
  double requests_per_rank = 0;
};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Memory shared by the processes of a measurement.
struct Board {
  std::atomic<int> ready, joined;  // ranks
  std::atomic<bool> go;
  std::atomic<int64_t> requests, processor_us;
};

using RankBody = std::function<void(int rank, const std::function<void()>& joined)>;

void poll_until(const std::function<bool()>& is_true) {
  while (!is_true()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// One process of kRanksPerProcess ranks, each a thread. It runs until all ranks of the job have joined.
void run_process(Board* board, int world, int first, const RankBody& rank_body) {
  std::latch start(1), end(1);
  std::vector<std::thread> ranks;
  for (int rank = first; rank < first + kRanksPerProcess; ++rank) {
    ranks.emplace_back([&, rank] {
      ++board->ready;
      start.wait();
      rank_body(rank, [&] {
        ++board->joined;
        end.wait();
      });
    });
  }
  poll_until([&] { return board->go.load(); });
  const double busy = processor_seconds();
  start.count_down();
  poll_until([&] { return board->joined == world; });
  board->processor_us += static_cast<int64_t>(1e6 * (processor_seconds() - busy));
  board->requests += store_requests();
  end.count_down();
  for (std::thread& rank : ranks) rank.join();
}

// Returns the time from the start of all ranks until the last of them has joined.
Join time_join(int world, const RankBody& rank_body) {
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  auto* board = new (memory) Board();
  for (int first = 0; first < world; first += kRanksPerProcess) {
    const pid_t pid = fork();
    if (pid < 0) std::abort();
    if (pid > 0) continue;
    run_process(board, world, first, rank_body);
    _exit(0);
  }
  poll_until([&] { return board->ready == world; });
  const auto begin = Clock::now();
  board->go = true;
  poll_until([&] { return board->joined == world || waitpid(-1, nullptr, WNOHANG) > 0; });
  if (board->joined != world) std::abort();  // a process has exited too early, and has printed why
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  const Join result{seconds, 1e-6 * static_cast<double>(board->processor_us),
                    static_cast<double>(board->requests) / world};
  munmap(memory, sizeof(Board));
  return result;
}

Join ours(int world) {
  const int port = bench::free_port();
  return time_join(world, [&](int rank, const std::function<void()>& joined) {
    JobEnvironment job;
    job.rank = rank;
    job.world = world;
    job.master_port = port;
    job.source = JobSource::torchrun;
    job.token = "0123456789abcdef0123456789abcdef";
    const std::shared_ptr<Store> store = connect_store(job, kTimeout);
    Peers peers(store, rank);
    rendezvous(*store, {rank, world, describe_this_process(), {{"seed", "42"}}}, kTimeout);
    peers.await_process(0, kTimeout);
    joined();
  });
}

Join c10d_join(int world) {
  const int port = bench::free_port();
  return time_join(world, [&](int rank, const std::function<void()>& joined) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = rank == 0;
    options.waitWorkers = false;
    options.timeout = kTimeout;
    c10d::TCPStore store("127.0.0.1", options);
    if (store.add("arrived", 1) == world) store.set("complete", std::vector<uint8_t>{1});
    store.wait({"complete"});
    joined();
  });
}

std::string join_name(int world) { return "ranks that join a job: " + std::to_string(world); }
constexpr const char* kGrowth = "time per rank, 4096 over 64 ranks, divided by log 4096 / log 64";

nlohmann::json row_of(const std::string& name, double value, const char* unit, double goal) {
  return {{"name", name},     {"ours", value}, {"peer", nullptr},     {"unit", unit},
          {"ratio", nullptr}, {"goal", goal},  {"met", value <= goal}};
}

void print(const nlohmann::json& row) {
  std::printf("%-66s %10.4g %-2s goal <= %-3g %s", row["name"].get<std::string>().c_str(), row["ours"].get<double>(),
              row["unit"].get<std::string>().c_str(), row["goal"].get<double>(),
              row["met"].get<bool>() ? "met" : "NOT MET");
  if (row.contains("requests_per_rank")) {
    std::printf("; %.1f requests and %.0f us of processor time per rank; c10d %.4g s, %.0f us",
                row["requests_per_rank"].get<double>(), row["processor_us_per_rank"].get<double>(),
                row["peer"].get<double>(), row["peer_processor_us_per_rank"].get<double>());
  }
  std::printf("\n");
  std::fflush(stdout);
}

nlohmann::json measure(const bench::Options& options) {
  nlohmann::json rows = nlohmann::json::array();
  const auto add = [&](const nlohmann::json& row) {
    rows.push_back(row);
    if (!options.json) print(row);
  };
  double smallest = 0, largest = 0;
  for (int world = kMinWorld; world <= kMaxWorld; world *= 4) {
    if (join_name(world).find(options.part) == std::string::npos && options.part != kGrowth) continue;
    const Join join = ours(world);
    const Join peer = c10d_join(world);
    nlohmann::json row = row_of(join_name(world), join.seconds, "s", 5);
    row["peer"] = peer.seconds;
    row["ratio"] = peer.seconds / join.seconds;
    row["requests_per_rank"] = join.requests_per_rank;
    row["processor_us_per_rank"] = 1e6 * join.processor_seconds / world;
    row["peer_processor_us_per_rank"] = 1e6 * peer.processor_seconds / world;
    add(row);
    (world == kMinWorld ? smallest : largest) = join.seconds / world;
  }
  if (smallest > 0 && largest > 0)
    add(row_of(kGrowth, largest / smallest / (std::log(kMaxWorld) / std::log(kMinWorld)), "x", 1));
  return rows;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  const concord::bench::Options options = concord::bench::read_options(argc, argv);
  mallopt(M_ARENA_MAX, 2);  // many threads, but not one arena for each of them
  const nlohmann::json rows = concord::measure(options);
  if (options.json) std::printf("%s\n", rows.dump(1).c_str());
  return 0;
}
