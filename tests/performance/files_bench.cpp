// Loading and saving the weights of a model of 1 GB, compared with `cat` of the same files to /dev/null, warm, and with
// transformers. Each figure is the best of several runs, since other load on the machine only adds time.
//
//   files_bench [--json]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/hf_weights.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr int kRuns = 5;
// 492 million parameters, 984 MB in bf16.
constexpr const char* kConfig = R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 2048,
 "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
 "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
 "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"})";

struct Row {
  std::string name;
  double ours;  // GB/s
  std::optional<double> peer;
  std::optional<double> goal;  // for ours / peer
};

using tests::TemporaryFolder;

double best_seconds(int runs, const std::function<void()>& body) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

std::optional<double> peer_seconds(const char* what, const std::string& folder) {
  const char* python = std::getenv("CONCORD_PYTHON");
  const std::string command = std::string(python != nullptr ? python : "python3") + " " FILES_PEER_SCRIPT " " + what +
                              " " + folder + " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  double seconds = 0;
  const bool read = std::fscanf(pipe, "%lf", &seconds) == 1;
  return pclose(pipe) == 0 && read ? std::optional(seconds) : std::nullopt;
}

double gigabytes_in(const std::string& folder) {
  double bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += static_cast<double>(entry.file_size());
  return bytes / 1e9;
}

std::vector<Row> measure() {
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  setenv("CONCORD_PLATFORM", "cpu", 0);
  ParallelContext& context = initialize({});
  const TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/model";
  VirtualModels model = AutoModel::from_config(parse_model_config(kConfig, "config.json"), {}, context);
  const std::vector<Parameter*> parameters = model.parameters();
  const ShardPlace place = shard_place(context.layout(), context.rank());
  save_hf_weights(folder, parameters, context, {.max_shard_bytes = 300'000'000, .config_json = kConfig});

  const std::string cat = "cat " + folder + "/* > /dev/null";
  const auto speed = [size = gigabytes_in(folder)](double seconds) { return size / seconds; };
  const auto rate = [&](const std::optional<double>& seconds) {
    return seconds ? std::optional(speed(*seconds)) : std::nullopt;
  };
  const double cat_seconds = best_seconds(kRuns, [&] { (void)!std::system(cat.c_str()); });
  const double load = best_seconds(kRuns, [&] { load_hf_weights(folder, parameters, place); });
  const double whole = best_seconds(kRuns, [&] { AutoModel::from_pretrained(folder, {}, context); });
  const double own = best_seconds(kRuns, [&] {
    VirtualModels loaded = AutoModel::from_pretrained(folder, {}, context);
    for (Parameter* parameter : loaded.parameters()) parameter->value.set_data(parameter->value.detach().clone());
  });
  const double save = best_seconds(
      3, [&] { save_hf_weights(folder + "-saved", parameters, context, {.config_json = kConfig, .overwrite = true}); });
  return {
      {"files: weights of 1 GB into parameters, beside cat", speed(load), speed(cat_seconds), 0.8},
      {"files: from_pretrained of 1 GB, beside transformers", speed(whole), rate(peer_seconds("load", folder)), 1.5},
      {"files: from_pretrained of 1 GB, then a copy of every parameter",
       speed(own),
       rate(peer_seconds("own", folder)),
       {}},
      {"files: save of 1 GB, durable, beside transformers", speed(save), rate(peer_seconds("save", folder)), {}}};
}

nlohmann::json json_of(const Row& row) {
  nlohmann::json json = {{"name", row.name}, {"ours", row.ours}, {"peer", nullptr}, {"unit", "GB/s"},
                         {"ratio", nullptr}, {"goal", nullptr},  {"met", nullptr}};
  if (row.goal) json["goal"] = *row.goal;
  if (!row.peer) return json;
  json["peer"] = *row.peer;
  json["ratio"] = row.ours / *row.peer;
  if (row.goal) json["met"] = row.ours / *row.peer >= *row.goal;
  return json;
}

int run(bool as_json) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : measure()) {
    rows.push_back(json_of(row));
    if (as_json) continue;
    std::printf("%-70s %7.2f GB/s   peer %7.2f   ratio %.2f   goal %s\n", row.name.c_str(), row.ours,
                row.peer.value_or(0), row.peer ? row.ours / *row.peer : 0,
                row.goal ? std::to_string(*row.goal).c_str() : "-");
  }
  if (as_json) std::printf("%s\n", rows.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--json") != 0)) {
    std::fprintf(stderr, "usage: files_bench [--json]\n");
    return 2;
  }
  return concord::run(argc == 2);
}
