// A training step on two ranks of one thread each, compared with torch DistributedDataParallel (gloo) with fused AdamW
// on the same model: forward, backward, gradients averaged over the ranks and clipped, update.
//
//   train_step_bench [part of a row's name] [--json]
//
// Also the cost of comparing the replicas (core/data_parallel/replica_check.h) every 10 steps, the default of
// check_replicas_steps, relative to the steps of the same run.
//
// Our runs and the peer's alternate, each a separate job; a row has the best of its rounds, since other load on the
// machine only adds time.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/data_parallel/finalize_grads.h"
#include "core/data_parallel/replica_check.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/optim/optimizer.h"
#include "tests/performance/bench_program.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 3, kWarmUp = 3;
constexpr double kCheckSteps = 10, kCheckShare = 0.01;

struct Case {
  std::string name;
  int64_t hidden, layers, heads, kv_heads, inner, vocabulary;
  int64_t rows, tokens;  // per rank
  int steps;
  double goal;
  bool distributed;
};

std::string config_of(const Case& c) {
  return nlohmann::json{{"model_type", "qwen2"},          {"architectures", {"Qwen2ForCausalLM"}},
                        {"hidden_size", c.hidden},        {"num_hidden_layers", c.layers},
                        {"num_attention_heads", c.heads}, {"num_key_value_heads", c.kv_heads},
                        {"intermediate_size", c.inner},   {"vocab_size", c.vocabulary},
                        {"hidden_act", "silu"},           {"max_position_embeddings", 2048},
                        {"rms_norm_eps", 1e-6},           {"rope_theta", 10000.0},
                        {"tie_word_embeddings", false}}
      .dump();
}

void enter_job(int rank, int port) {
  const auto set = [](const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); };
  set("RANK", rank);
  set("WORLD_SIZE", 2);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", 2);
  set("MASTER_PORT", port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("CONCORD_LOG", "warn", 1);
}

// Returns the first decile: on a busy machine the median measures other load.
double best_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 10];
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Times {
  double step = 0;
  double check = 0;  // of the replicas, if measured
};

Times train(const Case& c, bool checks) {
  at::set_num_threads(1);
  ParallelContext& job = initialize({});
  VirtualModels models = AutoModel::from_config(parse_model_config(config_of(c), c.name), {.dtype = at::kFloat}, job);
  DistributedDataParallel ddp({models.parameters()}, job,
                              {.use_distributed_optimizer = c.distributed, .ddp_average_in_collective = true});
  Optimizer optimizer(ddp, {});
  ReplicaCheck replicas(ddp);
  std::vector<double> steps, of_checks;
  for (int step = 0; step < kWarmUp + c.steps; ++step) {
    const at::Tensor ids = at::randint(c.vocabulary, {c.rows, c.tokens}, at::kLong);
    const auto begin = Clock::now();
    ddp.begin_step(1);
    models[0].forward({}, {.input_ids = ids, .labels = ids}).value.mean().backward();
    finalize_grads(ddp);
    optimizer.step({.lr = 1e-4, .weight_decay = 0.1});
    if (step >= kWarmUp) steps.push_back(seconds_since(begin));
    if (!checks) continue;
    const auto begin_check = Clock::now();
    if (replicas.run()) std::abort();
    if (step >= kWarmUp) of_checks.push_back(seconds_since(begin_check));
  }
  finalize();
  return {best_of(steps), checks ? best_of(of_checks) : 0};
}

// Starts two processes: |body|(rank) writes the result of rank 0 to its pipe argument.
template <class Body>
std::optional<std::string> run_two(const Body& body) {
  const int port = bench::free_port();
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    if (fork() != 0) continue;
    close(ends[0]);
    enter_job(rank, port);
    dup2(ends[1], STDOUT_FILENO);
    body();
    std::fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[256];
  for (ssize_t length = 0; (length = read(ends[0], part, sizeof part)) > 0;) text.append(part, size_t(length));
  close(ends[0]);
  int status = 0;
  bool fine = true;
  while (waitpid(-1, &status, 0) > 0) fine &= status == 0;
  return fine && !text.empty() ? std::optional(text) : std::nullopt;
}

std::optional<Times> run_ours(const Case& c, bool checks) {
  const auto text = run_two([&] {
    const Times times = train(c, checks);
    if (std::string(std::getenv("RANK")) == "0") std::printf("%.9f %.9f\n", times.step, times.check);
  });
  if (!text) return std::nullopt;
  char* end = nullptr;
  const double step = std::strtod(text->c_str(), &end);
  return Times{step, std::strtod(end, nullptr)};
}

std::optional<double> time_ours(const Case& c) {
  const std::optional<Times> times = run_ours(c, false);
  return times ? std::optional(times->step) : std::nullopt;
}

std::optional<double> time_peer(const Case& c) {
  const char* chosen = std::getenv("CONCORD_PYTHON");
  const std::string python = chosen != nullptr ? chosen : "python3", config = config_of(c);
  const std::string rows = std::to_string(c.rows), tokens = std::to_string(c.tokens), steps = std::to_string(c.steps);
  const auto text = run_two([&] {
    execlp(python.c_str(), python.c_str(), TRAIN_STEP_PEER, config.c_str(), rows.c_str(), tokens.c_str(), steps.c_str(),
           nullptr);
    _exit(1);
  });
  return text ? std::optional(std::strtod(text->c_str(), nullptr)) : std::nullopt;
}

nlohmann::json measure(const Case& c) {
  std::optional<double> ours, peer;
  const auto keep_best = [](std::optional<double>& best, const std::optional<double>& found) {
    if (found && (!best || *found < *best)) best = found;
  };
  for (int round = 0; round < kRounds; ++round) {
    keep_best(ours, time_ours(c));
    keep_best(peer, time_peer(c));
  }
  if (!ours) std::abort();  // its ranks have printed why
  nlohmann::json row{{"name", c.name},   {"ours", 1 / *ours}, {"peer", nullptr}, {"unit", "steps/s"},
                     {"ratio", nullptr}, {"goal", c.goal},    {"met", nullptr}};
  if (!peer) {
    row["note"] = "no peer: CONCORD_PYTHON has no torch";
    return row;
  }
  row["peer"] = 1 / *peer;
  row["ratio"] = *peer / *ours;
  row["met"] = *peer / *ours >= c.goal;
  return row;
}

nlohmann::json measure_check(const Case& c) {
  std::optional<Times> best;
  for (int round = 0; round < kRounds; ++round) {
    const std::optional<Times> found = run_ours(c, true);
    if (found && (!best || found->check / found->step < best->check / best->step)) best = found;
  }
  if (!best) std::abort();  // its ranks have printed why
  const double ours = best->check / kCheckSteps;
  return {{"name", "comparing replicas, " + c.name},
          {"ours", ours * 1e6},
          {"peer", best->step * 1e6},
          {"unit", "us a step"},
          {"ratio", best->step / ours},
          {"goal", kCheckShare * best->step * 1e6},
          {"met", ours <= kCheckShare * best->step}};
}

std::vector<Case> cases() {
  const Case small{"train step, 1M parameters, dp 2", 128, 4, 4, 4, 384, 1024, 2, 32, 60, 1.5, false};
  const Case large{"train step, 25M parameters, dp 2", 512, 6, 8, 8, 1408, 4608, 1, 64, 10, 1.1, false};
  std::vector<Case> all{small, large};
  for (Case c : {small, large}) {
    c.name += ", distributed optimizer";
    c.distributed = true;
    all.push_back(c);
  }
  return all;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  const auto [json, part] = concord::bench::read_options(argc, argv);
  concord::bench::with_one_thread_a_rank(argv);  // also for the peer
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  nlohmann::json document = nlohmann::json::array();
  for (const concord::Case& c : concord::cases()) {
    for (const bool checks : {false, true}) {
      if (((checks ? "comparing replicas, " : "") + c.name).find(part) == std::string::npos) continue;
      document.push_back(checks ? concord::measure_check(c) : concord::measure(c));
      if (!json) std::printf("%s\n", document.back().dump().c_str());
    }
  }
  if (json) std::printf("%s\n", document.dump(1).c_str());
  return 0;
}
