// The cost of joining a job: a rank's groups at any world size, initialize, a whole job of four processes.
//
//   init_bench [part of a row's name] [--json] [--full]      --full also asks the peer at world 2^20, which takes it a
//   minute
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/launch/launcher.h"
#include "core/mesh/initialize.h"
#include "core/mesh/rank_layout.h"
#include "tests/performance/bench_program.h"

namespace {

// Bytes that were allocated while counting.
bool counting = false;
size_t counted = 0;

}  // namespace

// Not inlined, otherwise the compiler warns about a mismatch of malloc and delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (counting) counted += bytes;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Row {
  std::string name;
  double ours;
  std::optional<double> peer;
  const char* unit;
  double goal;  // maximum
  std::string note;
};

// Returns the output of |command|, or nullopt if it fails.
std::optional<std::string> output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char part[256];
  while (std::fgets(part, sizeof part, pipe) != nullptr) text += part;
  return pclose(pipe) == 0 ? std::optional(text) : std::nullopt;
}

std::string python() {
  const char* chosen = std::getenv("CONCORD_PYTHON");
  return chosen != nullptr ? chosen : "python3";
}

// ----------------------------------------------------------------------------------------------------------- groups

ParallelSizes sizes_of(int64_t world) { return {.world = world, .tensor = 8, .pipeline = 16}; }

// Computes all groups of one rank, with the members of those that are short enough to list, including the data-parallel
// group of 8192 ranks at 2^20.
size_t own_groups(int64_t world) {
  const RankLayout layout(sizes_of(world));
  const int64_t rank = world / 3;
  size_t members = 0;
  for (const GroupKind kind : all_group_kinds()) {
    const auto group = layout.group_of(kind, rank);
    if (group && group->size() <= 8192) members += group->members().size();
  }
  return members;
}

std::string groups_name(int exponent) { return "own groups of a rank, world 2^" + std::to_string(exponent); }

Row groups_row(int exponent, bool ask_peer) {
  const int64_t world = int64_t{1} << exponent;
  std::vector<double> took;
  size_t sink = 0;
  for (int i = 0; i < 20; ++i) {
    const auto begin = Clock::now();
    sink += own_groups(world);
    took.push_back(milliseconds_since(begin));
  }
  if (sink == 0) std::abort();
  Row row{groups_name(exponent), median(took), {}, "ms", 1, {}};
  if (!ask_peer) return row;
  const auto text = output_of(python() + " " INIT_PEER_SCRIPT " groups " + std::to_string(world) + " 8 16 2>/dev/null");
  if (text) row.peer = 1000 * std::strtod(text->c_str(), nullptr);
  if (!text) row.note = "no peer: CONCORD_PYTHON has no megatron.core";
  return row;
}

constexpr const char* kMemory = "memory for them, world 2^20";

Row memory_row() {
  counted = 0;
  counting = true;
  own_groups(int64_t{1} << 20);
  counting = false;
  return {kMemory, static_cast<double>(counted) / 1e6, {}, "MB", 1, {}};
}

// ------------------------------------------------------------------------------------------------------- initialize

struct Timing {
  double initialize;
  double first_call;
};

// Measures one rank in a process that has already loaded libtorch: a fork of this one.
Timing time_rank(int rank, int world, int port) {
  const auto set = [](const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); };
  set("RANK", rank);
  set("WORLD_SIZE", world);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", world);
  set("MASTER_PORT", port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("CONCORD_LOG", "warn", 1);
  at::set_num_threads(1);
  Timing timing{};
  const auto begin = Clock::now();
  ParallelContext& job = initialize({.tensor_model_parallel_size = 2});
  timing.initialize = milliseconds_since(begin);
  const auto called = Clock::now();
  job.group(GroupKind::tp).all_reduce(at::ones({1})).wait();
  timing.first_call = milliseconds_since(called);
  finalize();
  return timing;
}

// Returns the time of the slowest rank.
Timing time_job(int world) {
  const int port = bench::free_port();
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  for (int rank = 0; rank < world; ++rank) {
    if (fork() != 0) continue;
    const Timing timing = time_rank(rank, world, port);
    _exit(write(ends[1], &timing, sizeof timing) == sizeof timing ? 0 : 1);
  }
  close(ends[1]);
  Timing slowest{};
  Timing one{};
  int reported = 0;
  while (read(ends[0], &one, sizeof one) == sizeof one) {
    slowest = {std::max(slowest.initialize, one.initialize), std::max(slowest.first_call, one.first_call)};
    ++reported;
  }
  close(ends[0]);
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  if (reported != world) std::abort();
  return slowest;
}

// -------------------------------------------------------------------------------------------------------- whole jobs

double time_hello(int world) {
  const std::string command[] = {HELLO};
  LaunchOptions options;
  options.nproc = world;
  options.log_dir = "/tmp/concord-init-bench-" + std::to_string(getpid());
  const auto begin = Clock::now();
  if (launch(options, command) != 0) std::abort();
  const double took = milliseconds_since(begin) / 1000;
  if (std::system(("rm -r " + options.log_dir).c_str()) != 0) std::abort();
  return took;
}

std::optional<double> time_peer_hello(int world) {
  const auto begin = Clock::now();
  const auto done =
      output_of(python() + " -m torch.distributed.run --nproc-per-node " + std::to_string(world) + " --master-port " +
                std::to_string(bench::free_port()) + " " INIT_PEER_SCRIPT " hello 2>/dev/null");
  return done ? std::optional(milliseconds_since(begin) / 1000) : std::nullopt;
}

constexpr const char* kInitialize = "initialize, world 4, libtorch loaded";
constexpr const char* kFirstCall = "first all_reduce of a group, with its communicator, world 4";
constexpr const char* kHello = "hello: 4 processes start, all-reduce and end";
constexpr int kWorld = 4;
constexpr int kRounds = 5;

std::vector<Row> initialize_rows() {
  std::vector<double> initialize, first_call;
  for (int round = 0; round < kRounds; ++round) {
    const Timing timing = time_job(kWorld);
    initialize.push_back(timing.initialize);
    first_call.push_back(timing.first_call);
  }
  return {{kInitialize, median(initialize), {}, "ms", 100, {}}, {kFirstCall, median(first_call), {}, "ms", 100, {}}};
}

Row hello_row() {
  std::vector<double> hello;
  for (int round = 0; round < kRounds; ++round) hello.push_back(time_hello(kWorld));
  const std::optional<double> peer = time_peer_hello(kWorld);
  return {kHello, median(hello), peer, "s", 1.5, peer ? "" : "no peer: CONCORD_PYTHON has no torch"};
}

// ----------------------------------------------------------------------------------------------------------- output

nlohmann::json to_json(const Row& row) {
  nlohmann::json json = {{"name", row.name},           {"ours", row.ours}, {"peer", nullptr},
                         {"unit", row.unit},           {"ratio", nullptr}, {"goal", row.goal},
                         {"met", row.ours <= row.goal}};
  if (row.peer) json["peer"] = *row.peer;
  if (row.peer) json["ratio"] = *row.peer / row.ours;
  if (!row.note.empty()) json["note"] = row.note;
  return json;
}

void print(const Row& row) {
  const std::string peer = row.peer ? std::to_string(*row.peer) : "-";
  const std::string ratio = row.peer ? std::to_string(*row.peer / row.ours) : "-";
  std::printf("%-62s %12.6g %14s %4s  ratio %-12s goal <= %-5g %s %s\n", row.name.c_str(), row.ours, peer.c_str(),
              row.unit, ratio.c_str(), row.goal, row.ours <= row.goal ? "met" : "NOT MET", row.note.c_str());
}

struct Options {
  bool json = false;
  bool full = false;
  std::string part;  // substring of the names of the rows to run

  bool wants(const std::string& name) const { return name.find(part) != std::string::npos; }
};

std::vector<Row> measure(const Options& options) {
  std::vector<Row> rows;
  for (const int exponent : {16, 20, 40}) {
    if (!options.wants(groups_name(exponent))) continue;
    rows.push_back(groups_row(exponent, exponent == 16 || (exponent == 20 && options.full)));
  }
  if (options.wants(kMemory)) rows.push_back(memory_row());
  if (options.wants(kInitialize) || options.wants(kFirstCall)) {
    for (Row& row : initialize_rows()) {
      if (options.wants(row.name)) rows.push_back(std::move(row));
    }
  }
  if (options.wants(kHello)) rows.push_back(hello_row());
  return rows;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  concord::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--") && word != "--json" && word != "--full") {
      std::fprintf(stderr, "init_bench: unknown option '%s'; it takes [part of a name] [--json] [--full]\n", argv[i]);
      return 2;
    }
    options.json |= word == "--json";
    options.full |= word == "--full";
    if (!word.starts_with("--")) options.part = word;
  }
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  const std::vector<concord::Row> rows = concord::measure(options);
  nlohmann::json document = nlohmann::json::array();
  for (const concord::Row& row : rows) document.push_back(concord::to_json(row));
  if (options.json) {
    std::printf("%s\n", document.dump(1).c_str());
    return 0;
  }
  for (const concord::Row& row : rows) concord::print(row);
  return 0;
}
