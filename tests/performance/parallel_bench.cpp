// Tensor parallelism on the host: two transformer layers of 25.7 million parameters, forward and backward in fp32,
// sharded over 2 processes of one thread each, compared with the whole layers in one process with two threads.
//
//   parallel_bench [--json] [filter]      rows whose name contains the filter
//
// Every kind of job has its own processes, started before anything is measured; they alternate, step by step, and the
// best step of each counts, since other load can only make a step longer. The gradient of the input, to which every
// weight contributes, must be the same in all jobs, or the program aborts.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/mesh/initialize.h"
#include "core/ops/attention/attention.h"
#include "core/ops/attention/rope.h"
#include "core/ops/attention/rope_angles.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/parallel_linear.h"
#include "tests/free_port.h"

namespace concord {
namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 256, kHidden = 1024, kHeads = 16, kHead = kHidden / kHeads, kInner = 2816, kLayers = 2;
constexpr double kGoal = 0.85;
constexpr int kWarmUp = 2;
constexpr int kSteps = 8;

// ----------------------------------------------------------------------------------------------------------- layers

// The same numbers in every process: each draws the whole weight and keeps its shard.
struct Weight {
  Weight(std::vector<int64_t> shape, int64_t cut_dim, const ProcessGroup& group) {
    const Tensor whole = at::randn(shape) / 32.0;
    value = own_part(whole, group, cut_dim).contiguous();
    if (value.dim() == 3) value = value.flatten(0, 1);  // pieces that one GEMM computes: q, k, v or gate, up
    value.requires_grad_(true);
    sink.main = at::zeros(value.sizes());
  }
  Tensor value;
  GradSink sink;
};

struct Layer {
  explicit Layer(const ProcessGroup& group)
      : qkv({3, kHidden, kHidden}, 1, group),
        out({kHidden, kHidden}, 1, group),
        gate_up({2, kInner, kHidden}, 1, group),
        down({kHidden, kInner}, 1, group),
        norm1((at::randn({kHidden}) / 32.0 + 1).requires_grad_(true)),
        norm2((at::randn({kHidden}) / 32.0 + 1).requires_grad_(true)) {}
  Weight qkv, out, gate_up, down;
  Tensor norm1, norm2;
};

class Network {
 public:
  Network(ProcessGroup& group, bool sequence_parallel) : group_(group), sequence_parallel_(sequence_parallel) {
    at::manual_seed(7);
    for (int64_t i = 0; i < kLayers; ++i) layers_.emplace_back(group);
    const Tensor x = at::randn({kTokens, 1, kHidden}), grad = at::randn({kTokens, 1, kHidden});
    x_ = own_tokens(x).clone().requires_grad_(true);
    grad_ = own_tokens(grad);
    angles_ = rope_angles(rope_frequencies({.head_dim = kHead}), at::arange(kTokens, at::kLong));
  }

  // Forward and backward.
  void step() {
    x_.mutable_grad().reset();
    Tensor x = x_;
    for (const Layer& layer : layers_) {
      x = x + attended(rms_norm(x, layer.norm1, 1e-6), layer);
      x = x + transformed(rms_norm(x, layer.norm2, 1e-6), layer);
    }
    x.backward(grad_);
  }

  // Returns a number that depends on all weights: the largest gradient of the input's first token.
  double check() const {
    const Tensor all = sequence_parallel_ ? gather(x_.grad(), group_, 0).take() : x_.grad();
    return all.select(0, 0).abs().max().item<double>();
  }

 private:
  Tensor own_tokens(const Tensor& x) const { return sequence_parallel_ ? own_part(x, group_, 0) : x; }
  ParallelLinearOptions options(const char* name) const {
    return {.name = name, .sequence_parallel = sequence_parallel_};
  }

  Tensor attended(const Tensor& x, const Layer& layer) {
    const Tensor qkv = column_parallel_linear(x, layer.qkv.value, {}, group_, options("qkv"), &layer.qkv.sink);
    const Tensor parts = qkv.view({kTokens, 1, 3, -1, kHead}).transpose(0, 1);
    const auto turned = [&](int64_t i) { return rope(parts.select(2, i), angles_.cos, angles_.sin); };
    const Tensor seen = attention(turned(0), turned(1), parts.select(2, 2)).transpose(0, 1).flatten(2);
    return row_parallel_linear(seen, layer.out.value, {}, group_, options("out"), &layer.out.sink);
  }

  Tensor transformed(const Tensor& x, const Layer& layer) {
    const Tensor both = column_parallel_linear(x, layer.gate_up.value, {}, group_, options("up"), &layer.gate_up.sink);
    return row_parallel_linear(swiglu(both), layer.down.value, {}, group_, options("down"), &layer.down.sink);
  }

  ProcessGroup& group_;
  bool sequence_parallel_;
  std::vector<Layer> layers_;
  Tensor x_, grad_;
  RopeAngles angles_;
};

// -------------------------------------------------------------------------------------------------------- processes

struct Kind {
  const char* name;
  int ranks;
  int threads;  // per rank
  bool sequence_parallel;
};
constexpr Kind kPeer{"one process with two threads", 1, 2, false};
constexpr Kind kTensor{"parallel/tp 2/2 layers, 25.7M parameters", 2, 1, false};
constexpr Kind kSequence{"parallel/tp 2/2 layers, 25.7M parameters/sequence parallel", 2, 1, true};

struct Answer {
  double milliseconds;
  double check;
};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "parallel_bench: %s\n", what);
  std::exit(1);
}

// The processes of a job of one kind. They sleep until a step is requested.
class Job {
 public:
  explicit Job(const Kind& kind) : ranks_(kind.ranks) {
    if (pipe(go_) != 0 || pipe(done_) != 0) fail("no pipe");
    const int port = tests::free_port();
    for (int rank = 0; rank < kind.ranks; ++rank) {
      const pid_t pid = fork();
      if (pid < 0) fail("no process");
      if (pid == 0) work(kind, rank, port);
    }
    close(go_[0]);
    close(done_[1]);
  }

  // Returns the time of the slowest rank.
  Answer step() {
    for (int i = 0; i < ranks_; ++i) {
      if (write(go_[1], "s", 1) != 1) fail("a rank has ended");
    }
    Answer slowest{0, 0};
    for (int i = 0; i < ranks_; ++i) {
      Answer one{};
      if (read(done_[0], &one, sizeof one) != sizeof one) fail("a rank has ended; its words are above");
      slowest = {std::max(slowest.milliseconds, one.milliseconds), one.check};
    }
    return slowest;
  }

  void end() {
    close(go_[1]);
    close(done_[0]);
  }

 private:
  [[noreturn]] void work(const Kind& kind, int rank, int port) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(go_[1]);
    close(done_[0]);
    const auto set = [](const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); };
    set("RANK", rank);
    set("WORLD_SIZE", kind.ranks);
    set("LOCAL_RANK", rank);
    set("LOCAL_WORLD_SIZE", kind.ranks);
    set("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("CONCORD_LOG", "warn", 1);
    at::set_num_threads(kind.threads);
    ParallelContext& job = initialize({.tensor_model_parallel_size = kind.ranks});
    Network network(job.group(GroupKind::tp), kind.sequence_parallel);
    network.step();
    char asked = 0;
    while (read(go_[0], &asked, 1) == 1) {
      job.group(GroupKind::tp).barrier().synchronize();
      const auto begin = Clock::now();
      network.step();
      const double took = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      const Answer answer{took, network.check()};
      if (write(done_[1], &answer, sizeof answer) != sizeof answer) break;
    }
    finalize();
    _exit(0);
  }

  int ranks_;
  int go_[2];
  int done_[2];
};

// ------------------------------------------------------------------------------------------------------------- rows

struct Row {
  std::string name;
  double ours;
  double peer;
};

std::vector<Row> measure(const std::vector<Kind>& kinds) {
  std::vector<Job> jobs;
  jobs.reserve(kinds.size() + 1);
  jobs.emplace_back(kPeer);
  for (const Kind& kind : kinds) jobs.emplace_back(kind);
  std::vector<double> best(jobs.size(), INFINITY);
  for (int i = 0; i < kWarmUp + kSteps; ++i) {
    double right = 0;
    for (size_t j = 0; j < jobs.size(); ++j) {
      const Answer answer = jobs[j].step();
      if (i >= kWarmUp) best[j] = std::min(best[j], answer.milliseconds);
      if (j == 0) right = answer.check;
      if (!(std::abs(answer.check - right) <= 1e-3 * right)) fail("the jobs differ in the gradient of their input");
    }
  }
  for (Job& job : jobs) job.end();
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  std::vector<Row> rows;
  for (size_t j = 1; j < jobs.size(); ++j) rows.push_back({kinds[j - 1].name, best[j], best[0]});
  return rows;
}

nlohmann::json to_json(const Row& row) {
  const double ratio = row.peer / row.ours;
  return {{"name", row.name}, {"ours", row.ours}, {"peer", row.peer},     {"unit", "ms"},
          {"ratio", ratio},   {"goal", kGoal},    {"met", ratio >= kGoal}};
}

void print(const Row& row) {
  const double ratio = row.peer / row.ours;
  std::printf("%-62s %10.1f %10.1f ms  ratio %6.3f  goal %4.2f  %s\n", row.name.c_str(), row.ours, row.peer, ratio,
              kGoal, ratio >= kGoal ? "met" : "NOT MET");
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  bool json = false;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else {
      filter = argv[i];
    }
  }
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  std::vector<concord::Kind> kinds;
  for (const concord::Kind& kind : {concord::kTensor, concord::kSequence}) {
    if (std::string(kind.name).find(filter) != std::string::npos) kinds.push_back(kind);
  }
  nlohmann::json document = nlohmann::json::array();
  for (const concord::Row& row : kinds.empty() ? std::vector<concord::Row>() : concord::measure(kinds)) {
    if (json) document.push_back(concord::to_json(row));
    if (!json) concord::print(row);
  }
  if (json) std::printf("%s\n", document.dump(1).c_str());
  return 0;
}
