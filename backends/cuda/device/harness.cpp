#include "backends/cuda/device/harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace concord::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kCaseLimit(90);  // only ends a hang
constexpr int kIdBytes = 128;

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Options of the command line; a worker is this program, started again for one rank of one case.
struct HarnessOptions {
  std::string plugin;
  std::string filter;
  std::string json;
  std::string worker;  // the case's name; "" for the parent
  std::string files;
  int rank = 0;
};

HarnessOptions parse_harness(int argc, char** argv) {
  HarnessOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--plugin")
      options.plugin = value;
    else if (name == "--filter")
      options.filter = value;
    else if (name == "--json")
      options.json = value;
    else if (name == "--worker")
      options.worker = value;
    else if (name == "--files")
      options.files = value;
    else if (name == "--rank")
      options.rank = std::stoi(value);
    else
      throw std::invalid_argument("unknown option " + name);
  }
  if (options.plugin.empty()) throw std::invalid_argument("--plugin is missing");
  return options;
}

int run_worker(const HarnessOptions& options, const std::vector<NamedCase>& cases) {
  for (const NamedCase& each : cases) {
    if (options.worker != each.name) continue;
    try {
      // As the program's host answers it: from the environment.
      if (const char* nccl = std::getenv("CONCORD_CUDA_NCCL")) sdk::TestHost::set_config("cuda.nccl", nccl);
      if (const char* cupti = std::getenv("CONCORD_CUDA_CUPTI")) sdk::TestHost::set_config("cuda.cupti", cupti);
      const sdk::TestHost host(options.plugin.c_str());
      if (host.status() != CONCORD_STATUS_OK) throw Failed("the plugin does not open: " + sdk::TestHost::detail());
      Case run(host, options.rank, each.world, options.files);
      each.body(run);
      std::fflush(nullptr);
      _exit(0);  // not exit: a case may leave work behind that never ends
    } catch (const std::exception& error) {
      std::printf("    rank %d: %s\n", options.rank, error.what());
      std::fflush(nullptr);
      _exit(1);
    }
  }
  std::printf("unknown case %s\n", options.worker.c_str());
  return 2;
}

// NCCL treats processes of one device as ranks of different hosts, and communicates over loopback.
void set_rank_environment(int rank, int world) {
  if (world == 1) return;
  setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_IB_DISABLE", "1", 1);
}

pid_t start_worker(const char* program, const HarnessOptions& options, const NamedCase& each, int rank) {
  const pid_t child = fork();
  if (child != 0) return child;
  set_rank_environment(rank, each.world);
  execl(program, program, "--plugin", options.plugin.c_str(), "--worker", each.name, "--rank",
        std::to_string(rank).c_str(), "--files", options.files.c_str(), nullptr);
  std::perror(program);
  _exit(127);
}

// Waits for the ranks; kills what is left at the limit. True if all of them ended with 0.
bool all_end_well(std::vector<pid_t> ranks) {
  bool good = true;
  const auto limit = Clock::now() + kCaseLimit;
  while (!ranks.empty()) {
    for (auto rank = ranks.begin(); rank != ranks.end();) {
      int status = 0;
      if (waitpid(*rank, &status, WNOHANG) != *rank) {
        ++rank;
        continue;
      }
      if (WIFSIGNALED(status)) std::printf("    a rank was killed by signal %d\n", WTERMSIG(status));
      good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
      rank = ranks.erase(rank);
    }
    if (!ranks.empty() && Clock::now() > limit) {
      std::printf("    %zu ranks still ran after %lld s\n", ranks.size(), static_cast<long long>(kCaseLimit.count()));
      good = false;
    }
    if (!good) {  // the others may wait for the one that failed
      for (const pid_t rank : ranks) kill(rank, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return good;
}

std::string temporary_name() {
  char name[] = "/tmp/concord-cuda-device-XXXXXX";
  const int file = mkstemp(name);
  if (file >= 0) close(file);
  unlink(name);
  return name;
}

}  // namespace

int run_cases(int argc, char** argv, const std::vector<NamedCase>& cases) {
  HarnessOptions options;
  try {
    options = parse_harness(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\nusage: %s --plugin libconcord_cuda.so [--filter TEXT] [--json FILE]\n", error.what(),
                 argv[0]);
    return 2;
  }
  if (!options.worker.empty()) return run_worker(options, cases);
  int passed = 0;
  int failed = 0;
  std::ostringstream rows;
  for (const NamedCase& each : cases) {
    if (std::strstr(each.name, options.filter.c_str()) == nullptr) continue;
    options.files = temporary_name();
    const auto start = Clock::now();
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < each.world; ++rank) ranks.push_back(start_worker(argv[0], options, each, rank));
    const bool good = all_end_well(ranks);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("%s  %6.2f s  %s\n", good ? "pass" : "FAIL", seconds, each.name);
    std::fflush(stdout);
    rows << (passed + failed > 0 ? "," : "") << "\n  {\"name\": \"" << each.name << "\", \"status\": \""
         << (good ? "pass" : "fail") << "\", \"seconds\": " << seconds << "}";
    ++(good ? passed : failed);
    unlink((options.files + ".released").c_str());
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  if (!options.json.empty()) std::ofstream(options.json) << "[" << rows.str() << "\n]\n";
  return failed == 0 && passed > 0 ? 0 : 1;
}

void Case::check(concord_status status, const char* call, concord_status wanted) const {
  if (status == wanted) return;
  std::ostringstream words;
  words << call << " gave status " << status << ", not " << wanted << ": " << sdk::TestHost::detail();
  throw Failed(words.str());
}

void Case::require(bool holds, const std::string& what) const {
  if (!holds) throw Failed(what);
}

// Rank 0 creates the id and leaves it in a file that appears atomically.
concord_comm Case::connect(const std::string& name, int64_t timeout_ms) const {
  const concord_comm_table& comm = host.comm();
  const std::string file = files_ + "." + name;
  std::vector<char> id(kIdBytes);
  if (rank == 0) {
    check(comm.unique_id_create(comm.self, id.data(), kIdBytes), "comm.unique_id_create");
    std::ofstream(file + ".new", std::ios::binary).write(id.data(), kIdBytes);
    require(std::rename((file + ".new").c_str(), file.c_str()) == 0, "cannot leave the unique id in " + file);
  } else {
    while (!std::ifstream(file, std::ios::binary).read(id.data(), kIdBytes)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  const concord_comm_config config{sizeof config, 0, name.c_str(), timeout_ms};
  concord_comm made = nullptr;
  check(comm.init(comm.self, 0, world, rank, id.data(), kIdBytes, &config, &made), "comm.init");
  if (rank == 0) unlink(file.c_str());
  return made;
}

void Case::release_the_others() const {
  const std::string file = files_ + ".released";
  if (rank == 0) std::ofstream(file) << "go";
  while (rank != 0 && access(file.c_str(), F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

concord_stream Case::new_stream() const {
  concord_stream stream = nullptr;
  check(host.stream().create(host.stream().self, 0, 0, &stream), "stream.create");
  return stream;
}

void* Case::upload(const void* data, int64_t bytes) const {
  const concord_memory_table& memory = host.memory();
  void* device = nullptr;
  check(memory.allocate(memory.self, 0, bytes, &device), "memory.allocate");
  check(memory.copy(memory.self, device, data, bytes, CONCORD_COPY_HOST_TO_DEVICE), "memory.copy");
  return device;
}

void Case::download(void* to, const void* from, int64_t bytes) const {
  check(host.memory().copy(host.memory().self, to, from, bytes, CONCORD_COPY_DEVICE_TO_HOST), "memory.copy");
}

}  // namespace concord::device
