// Collectives of the shm engine compared with torch.distributed with gloo, in the same run.
//
// Both contestants are real processes, one per rank, that wait for commands on standard input: this program itself,
// started again as a rank, and collectives_gloo.py. Rounds alternate between the two, and the median of the rounds
// counts. The peer's column reports if there is no Python with torch.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/shm/communicator.h"
#include "tests/free_port.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
constexpr const char* kOperations[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "p2p"};
constexpr int kWorlds[] = {2, 4};

// Returns the required speedup over the peer.
double goal_for(int world, int64_t bytes) {
  if (bytes <= 64 << 10) return world == 2 ? 50 : 20;
  if (bytes <= 1 << 20) return world == 2 ? 6 : 8;
  return world == 2 ? 3 : 2.5;
}

// ---------------------------------------------------------------------------------------------------- one of our ranks

class OurRank {
 public:
  OurRank(int world, int rank, const std::string& id)
      : world_(world), rank_(rank), comm_(shm::Communicator::connect(world, rank, id.data(), shm::kUniqueIdBytes)) {}

  double measure(const std::string& operation, int64_t bytes, int64_t iterations) {
    const auto count = static_cast<size_t>(bytes) / sizeof(float);
    send_.assign(count, 1.0f);
    recv_.assign(count, 0.0f);
    for (int i = 0; i < 2; ++i) run(operation, static_cast<int64_t>(count));
    comm_->barrier();
    const auto start = Clock::now();
    for (int64_t i = 0; i < iterations; ++i) run(operation, static_cast<int64_t>(count));
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(iterations);
  }

 private:
  // |count| is the larger of the two buffers. all_reduce and broadcast are in place, as in torch.
  void run(const std::string& operation, int64_t count) {
    constexpr concord_dtype kFloat = CONCORD_DTYPE_F32;
    float* send = send_.data();
    float* recv = recv_.data();
    if (operation == "all_reduce") return comm_->all_reduce(send, send, count, kFloat, CONCORD_REDUCE_SUM);
    if (operation == "broadcast") return comm_->broadcast(send, send, count, kFloat, 0);
    if (operation == "all_gather") return comm_->all_gather(send, recv, count / world_, kFloat);
    if (operation == "reduce_scatter") {
      return comm_->reduce_scatter(send, recv, count / world_, kFloat, CONCORD_REDUCE_SUM);
    }
    if (operation == "all_to_all") return comm_->all_to_all(send, recv, count / world_, kFloat);
    const concord_p2p_item items[] = {{CONCORD_P2P_SEND, (rank_ + 1) % world_, send, count, kFloat, 0},
                                      {CONCORD_P2P_RECV, (rank_ + world_ - 1) % world_, recv, count, kFloat, 0}};
    comm_->batch_p2p(items);
  }

  int world_;
  int rank_;
  std::unique_ptr<shm::Communicator> comm_;
  std::vector<float> send_;
  std::vector<float> recv_;
};

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string new_id_in_hex() {
  unsigned char id[shm::kUniqueIdBytes];
  shm::create_unique_id(id, sizeof id);
  std::string text;
  char digits[3];
  for (const unsigned char byte : id) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

int be_a_rank(int world, int rank, const std::string& id) {
  OurRank self(world, rank, from_hex(id));
  std::puts("ready concord");
  std::fflush(stdout);
  char operation[32];
  long long bytes = 0;
  long long iterations = 0;
  while (std::scanf("%31s %lld %lld", operation, &bytes, &iterations) == 3) {
    std::printf("%.3f\n", self.measure(operation, bytes, iterations));
    std::fflush(stdout);
  }
  return 0;
}

// --------------------------------------------------------------------------------------------------------- contestants

// A process that replies to each line with a line.
class Worker {
 public:
  Worker(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment) {
    int to_child[2];
    int from_child[2];
    if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0)
      throw std::runtime_error("pipe failed");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(to_child[0], STDIN_FILENO);
      ::dup2(from_child[1], STDOUT_FILENO);
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      std::vector<char*> arguments;
      for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      ::execvp(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(to_child[0]);
    ::close(from_child[1]);
    input_ = to_child[1];
    output_ = ::fdopen(from_child[0], "r");
  }
  ~Worker() {
    ::close(input_);
    std::fclose(output_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void tell(const std::string& line) {
    if (::write(input_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("a rank has ended");
  }
  std::optional<std::string> hear() {
    char line[512];
    if (std::fgets(line, sizeof line, output_) == nullptr) return std::nullopt;
    std::string text(line);
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

 private:
  pid_t pid_ = 0;
  int input_ = -1;
  FILE* output_ = nullptr;
};

// All ranks of one implementation.
class Contestant {
 public:
  static Contestant ours(const std::string& program, int world) {
    Contestant result;
    const std::string id = new_id_in_hex();
    for (int rank = 0; rank < world; ++rank) {
      result.add({program, "--be-rank", std::to_string(world), std::to_string(rank), id}, {});
    }
    return result.ready();
  }

  static Contestant gloo(const std::string& python, const std::string& script, int world) {
    Contestant result;
    const std::string port = std::to_string(tests::free_port());
    for (int rank = 0; rank < world; ++rank) {
      result.add({python, script}, {{"RANK", std::to_string(rank)},
                                    {"WORLD_SIZE", std::to_string(world)},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", port},
                                    {"OMP_NUM_THREADS", "1"}});
    }
    return result.ready();
  }

  bool usable() const { return !workers_.empty(); }
  const std::string& version() const { return version_; }

  // Returns the microseconds of one operation on the slowest rank; nullopt if the contestant does not support it.
  std::optional<double> measure(const std::string& operation, int64_t bytes, int64_t iterations) {
    const std::string line = operation + " " + std::to_string(bytes) + " " + std::to_string(iterations) + "\n";
    for (auto& worker : workers_) worker->tell(line);
    double slowest = 0;
    bool done = true;
    for (auto& worker : workers_) {
      const auto answer = worker->hear();
      if (!answer) throw std::runtime_error("a rank has ended during " + line);
      char* end = nullptr;
      slowest = std::max(slowest, std::strtod(answer->c_str(), &end));
      if (end == answer->c_str()) done = false;
    }
    return done ? std::optional(slowest) : std::nullopt;
  }

 private:
  void add(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment) {
    workers_.push_back(std::make_unique<Worker>(command, environment));
  }

  // Waits until all ranks have reported that they are ready; an unavailable contestant has no ranks.
  Contestant&& ready() {
    for (auto& worker : workers_) {
      const auto greeting = worker->hear();
      if (!greeting || greeting->rfind("ready ", 0) != 0) {
        workers_.clear();
        break;
      }
      version_ = greeting->substr(6);
    }
    return std::move(*this);
  }

  std::vector<std::unique_ptr<Worker>> workers_;
  std::string version_;
};

// --------------------------------------------------------------------------------------------------------------- table

struct Settings {
  bool json = false;
  int rounds = 5;
  double seconds = 0.1;  // per measurement
  std::string filter;
  std::string python;
  std::string program;
};

struct Row {
  std::string name;
  double ours = 0;
  std::optional<double> peer;
  double goal = 0;

  double ratio() const { return peer ? *peer / ours : 0; }
  bool met() const { return peer && ratio() >= goal; }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string size_name(int64_t bytes) {
  return bytes >= 1 << 20 ? std::to_string(bytes >> 20) + "MB" : std::to_string(bytes >> 10) + "KB";
}

int64_t iterations_for(Contestant& contestant, const std::string& operation, int64_t bytes, double seconds) {
  const auto once = contestant.measure(operation, bytes, 3);
  if (!once) return 0;
  return std::clamp<int64_t>(static_cast<int64_t>(seconds * 1e6 / *once), 3, 20000);
}

void print_text(const Row& row) {
  if (row.peer) {
    std::printf("%-40s %12.1f %12.1f us %9.1fx %6.1fx  %s\n", row.name.c_str(), row.ours, *row.peer, row.ratio(),
                row.goal, row.met() ? "met" : "NOT MET");
  } else {
    std::printf("%-40s %12.1f %12s us %10s %6.1fx  no peer\n", row.name.c_str(), row.ours, "-", "-", row.goal);
  }
  std::fflush(stdout);
}

nlohmann::json to_json(const Row& row) {
  nlohmann::json json{{"name", row.name}, {"ours", row.ours}, {"unit", "us"}, {"goal", row.goal}};
  json["peer"] = row.peer ? nlohmann::json(*row.peer) : nlohmann::json();
  json["ratio"] = row.peer ? nlohmann::json(row.ratio()) : nlohmann::json();
  json["met"] = row.peer ? nlohmann::json(row.met()) : nlohmann::json();
  if (!row.peer) json["note"] = "no peer: no Python with torch, or its gloo lacks the operation; set CONCORD_PYTHON";
  return json;
}

std::string row_name(const std::string& operation, int64_t bytes, int world) {
  return "shm/" + operation + "/f32/" + size_name(bytes) + "/" + std::to_string(world) + "ranks";
}

struct Task {
  std::string operation;
  int64_t bytes = 0;
};

std::vector<Task> tasks_for(int world, const std::string& filter) {
  std::vector<Task> tasks;
  for (const char* operation : kOperations) {
    for (const int64_t bytes : kSizes) {
      if (row_name(operation, bytes, world).find(filter) != std::string::npos) tasks.push_back({operation, bytes});
    }
  }
  return tasks;
}

Row run_row(Contestant& ours, Contestant& peer, const Task& task, int world, const Settings& settings) {
  const auto& [operation, bytes] = task;
  Row row;
  row.name = row_name(operation, bytes, world);
  row.goal = goal_for(world, bytes);
  const int64_t our_iterations = iterations_for(ours, operation, bytes, settings.seconds);
  const int64_t peer_iterations = peer.usable() ? iterations_for(peer, operation, bytes, settings.seconds) : 0;
  std::vector<double> our_times;
  std::vector<double> peer_times;
  for (int i = 0; i < settings.rounds; ++i) {
    our_times.push_back(*ours.measure(operation, bytes, our_iterations));
    if (peer_iterations > 0) peer_times.push_back(*peer.measure(operation, bytes, peer_iterations));
  }
  row.ours = median(our_times);
  if (!peer_times.empty()) row.peer = median(peer_times);
  return row;
}

int run_all(const Settings& settings, const std::string& script) {
  nlohmann::json rows = nlohmann::json::array();
  if (!settings.json) std::printf("%-40s %12s %12s    %10s %7s\n", "name", "ours", "gloo", "ratio", "goal");
  for (const int world : kWorlds) {
    const auto tasks = tasks_for(world, settings.filter);
    if (tasks.empty()) continue;
    auto ours = Contestant::ours(settings.program, world);
    auto peer = Contestant::gloo(settings.python, script, world);
    if (!ours.usable()) throw std::runtime_error("the ranks of the shm engine did not start");
    if (!settings.json && peer.usable()) std::printf("# peer: %s, %d ranks\n", peer.version().c_str(), world);
    for (const Task& task : tasks) {
      const Row row = run_row(ours, peer, task, world, settings);
      if (settings.json) rows.push_back(to_json(row));
      if (!settings.json) print_text(row);
    }
  }
  if (settings.json) std::printf("%s\n", nlohmann::json{{"rows", rows}}.dump(1).c_str());
  return 0;
}

int usage() {
  std::fputs(
      "usage: collectives_bench [filter] [--json] [--rounds N] [--seconds S] [--python PATH]\n"
      "  filter     part of a row's name, for example all_reduce/f32/4KB or 4ranks\n"
      "  --python   a Python with torch, for the peer (default: $CONCORD_PYTHON, then python3)\n",
      stderr);
  return 2;
}

int main_function(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--be-rank")
    return be_a_rank(std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
  Settings settings;
  settings.program = "/proc/self/exe";
  const char* python = std::getenv("CONCORD_PYTHON");
  settings.python = python != nullptr ? python : "python3";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--json") {
      settings.json = true;
    } else if (word == "--rounds" && more) {
      settings.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--seconds" && more) {
      settings.seconds = std::atof(argv[++i]);
    } else if (word == "--python" && more) {
      settings.python = argv[++i];
    } else if (word.rfind("-", 0) == 0) {
      return usage();
    } else {
      settings.filter = word;
    }
  }
  return run_all(settings, COLLECTIVES_GLOO_SCRIPT);
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return concord::main_function(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collectives_bench: %s\n", error.what());
    return 1;
  }
}
