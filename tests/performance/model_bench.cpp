// Forward and backward of a whole model in fp32, compared with transformers (sdpa) with the same weights on the same
// tokens.
//
//   model_bench [part of a row's name] [--json]
//
// Our steps and the peer's alternate, so that both see the same machine; a row has their medians. The program aborts if
// the losses differ, since it is then not the same work.
#include <ATen/ops/arange.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/data_parallel/ddp.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/models/token_slices.h"
#include "tests/performance/bench_program.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

constexpr int kWarmUp = 1, kSteps = 9;
constexpr double kSameLoss = 1e-4;  // relative to a loss near ln 4608: some hundred roundings of fp32
// 25 million parameters.
constexpr const char* kConfig = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 512,
 "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8,
 "vocab_size": 4608, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "float32"})";
constexpr int64_t kVocabulary = 4608;

struct Case {
  std::string name;
  int64_t rows, tokens;
};

struct Step {
  double seconds, loss;
};

// The other program, which runs a step on request.
class Peer {
 public:
  Peer(const std::string& folder, const Case& c) {
    const char* chosen = std::getenv("CONCORD_PYTHON");
    const std::string python = chosen != nullptr ? chosen : "python3";
    const std::string rows = std::to_string(c.rows), tokens = std::to_string(c.tokens);
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) std::abort();
    std::fflush(nullptr);
    process_ = fork();
    if (process_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      for (const int end : {to[0], to[1], from[0], from[1]}) close(end);
      execlp(python.c_str(), python.c_str(), MODEL_PEER, folder.c_str(), rows.c_str(), tokens.c_str(), nullptr);
      _exit(1);
    }
    close(to[0]);
    close(from[1]);
    to_ = fdopen(to[1], "w");
    from_ = fdopen(from[0], "r");
  }
  ~Peer() {
    std::fclose(to_);
    std::fclose(from_);
    waitpid(process_, nullptr, 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Returns nullopt if there is no such program.
  std::optional<Step> step() {
    Step found{};
    if (std::fputs("go\n", to_) < 0 || std::fflush(to_) != 0) return {};
    return std::fscanf(from_, "%lf %lf", &found.seconds, &found.loss) == 2 ? std::optional(found) : std::nullopt;
  }

 private:
  pid_t process_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

// Like the trainer: gradients are cleared and accumulated in their buffers.
Step our_step(VirtualModels& models, DistributedDataParallel& ddp, const MicroBatch& batch) {
  const auto begin = std::chrono::steady_clock::now();
  ddp.begin_step(1);
  const double counted = static_cast<double>(batch.labels.size(0) * (batch.labels.size(1) - 1));
  const at::Tensor loss = models[0].forward({}, batch).value.sum().div(counted);
  loss.backward();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {seconds, loss.item<double>()};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json measure(const Case& c, ParallelContext& context) {
  VirtualModels models = AutoModel::from_config(parse_model_config(kConfig, "config.json"), {}, context);
  const tests::TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/model";
  models.save_pretrained(folder);
  const at::Tensor ids = at::arange(c.rows * c.tokens).mul(31).remainder(kVocabulary).view({c.rows, c.tokens});
  const MicroBatch batch{.input_ids = ids, .labels = labels_that_follow(ids)};
  DistributedDataParallel ddp({models.parameters()}, context);
  Peer peer(folder, c);
  std::vector<double> ours, theirs;
  for (int i = 0; i < kWarmUp + kSteps; ++i) {
    const Step mine = our_step(models, ddp, batch);
    const std::optional<Step> other = peer.step();
    if (other && std::abs(mine.loss - other->loss) > kSameLoss) {
      std::fprintf(stderr, "model_bench: a loss of %.7g beside the peer's %.7g\n", mine.loss, other->loss);
      std::exit(1);
    }
    if (i < kWarmUp) continue;
    ours.push_back(mine.seconds);
    if (other) theirs.push_back(other->seconds);
  }
  const double tokens = static_cast<double>(c.rows * c.tokens), goal = 1.1;
  nlohmann::json row{{"name", c.name},   {"ours", tokens / median(ours)},
                     {"peer", nullptr},  {"unit", "tokens/s"},
                     {"ratio", nullptr}, {"goal", goal},
                     {"met", nullptr}};
  if (theirs.empty()) {
    row["note"] = "no peer: CONCORD_PYTHON has no transformers";
    return row;
  }
  row["peer"] = tokens / median(theirs);
  row["ratio"] = median(theirs) / median(ours);
  row["met"] = row["ratio"] >= goal;
  return row;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  const auto [json, part] = concord::bench::read_options(argc, argv);
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  setenv("CONCORD_PLATFORM", "cpu", 0);
  setenv("CONCORD_LOG", "warn", 0);
  signal(SIGPIPE, SIG_IGN);  // a missing peer
  concord::ParallelContext& context = concord::initialize({});
  nlohmann::json document = nlohmann::json::array();
  for (const concord::Case& c : {concord::Case{"model, 25M parameters, 2 x 256 tokens", 2, 256},
                                 concord::Case{"model, 25M parameters, 2 x 64 tokens", 2, 64}}) {
    if (c.name.find(part) == std::string::npos) continue;
    document.push_back(concord::measure(c, context));
    if (!json) std::printf("%s\n", document.back().dump().c_str());
  }
  if (json) std::printf("%s\n", document.dump(1).c_str());
  concord::finalize();
  return 0;
}
