// The cost of data: the shuffle of an index compared with numpy's, a batch compared with torch's DataLoader in the same
// process, and the part of it on the training thread.
//
//   data_bench [--json]
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "trainer/data/batcher.h"
#include "trainer/data/build/build.h"
#include "trainer/data/build/synthetic.h"
#include "trainer/data/loader.h"
#include "trainer/data/numpy_shuffle.h"
#include "trainer/data/sources/gpt_indices.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr int64_t kSeqLength = 4096;
constexpr int64_t kMicroBatch = 4;
constexpr int64_t kBatches = 200;
constexpr size_t kEntries = 10'000'000;
constexpr int64_t kTokens = 20'000'000;
constexpr double kStepSeconds = 0.1;  // a short step; the goal is 1 % of it

struct Row {
  std::string name;
  double ours;
  std::optional<double> peer;
  std::string unit;
  std::optional<double> goal;
  bool more_is_better = false;

  bool met() const { return !goal || (more_is_better ? ours >= *goal : ours <= *goal); }
};

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Returns the object that a Python script prints; an empty one if it cannot run here.
json python_results(const std::string& args) {
  const char* const python = std::getenv("CONCORD_PYTHON");
  const std::string command = std::string(python != nullptr ? python : "python3") + " " + args + " 2>/dev/null";
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int letter = 0; pipe != nullptr && (letter = std::fgetc(pipe)) != EOF;) text += static_cast<char>(letter);
  if (pipe != nullptr) ::pclose(pipe);
  const json results = json::parse(text, nullptr, false);
  return results.is_object() ? results : json::object();
}

json peer_results(const std::string& prefix) {
  return python_results(DATA_PEER_SCRIPT " " + prefix + " " + std::to_string(kSeqLength) + " " +
                        std::to_string(kMicroBatch) + " " + std::to_string(kBatches) + " " + std::to_string(kEntries));
}

std::optional<double> peer_of(const json& results, const char* key) {
  if (!results.contains(key)) return std::nullopt;
  return results[key].get<double>();
}

double shuffle_seconds() {
  std::vector<uint32_t> values(kEntries);
  std::iota(values.begin(), values.end(), 0U);
  std::mt19937 random(1);
  return seconds_of([&] { numpy_shuffle(std::span(values), random); });
}

double indices_seconds() {
  std::mt19937 random(2);
  std::vector<int32_t> lengths(2'000'000);
  for (int32_t& length : lengths) length = static_cast<int32_t>(random() % 2000);
  return seconds_of([&] { build_gpt_indices(lengths, {.seq_length = kSeqLength, .samples = 1'000'000}); });
}

DataArguments arguments_for(const std::string& prefix) {
  return {.path = prefix, .seq_length = kSeqLength, .vocab_size = 1000, .micro_batch_size = kMicroBatch};
}

double making_seconds(const std::string& prefix) {
  const DataArguments arguments = arguments_for(prefix);
  const Batcher batcher(arguments, open_sample_source(arguments));
  const auto epoch = batcher.epoch(0);
  return seconds_of([&] {
           for (int64_t i = 0; i < kBatches; ++i) batcher.make(*epoch, i * kMicroBatch, kMicroBatch);
         }) /
         static_cast<double>(kBatches);
}

// Returns the median of next() if the thread has had the time of a step to build the batch.
double waiting_seconds(const std::string& prefix) {
  DataLoader loader(arguments_for(prefix));
  loader.next();
  std::vector<double> waits;
  for (int i = 0; i < 51; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    waits.push_back(seconds_of([&] { loader.next(); }));
  }
  std::nth_element(waits.begin(), waits.begin() + 25, waits.end());
  return waits[25];
}

double build_speed(const std::string& folder) {
  const std::string input = folder + "/text.jsonl";
  FILE* const file = std::fopen(input.c_str(), "w");
  std::mt19937 random(3);
  for (int i = 0; i < 40'000; ++i) {
    std::string text(1000, 'a');
    for (char& letter : text) letter = static_cast<char>('a' + random() % 26);
    std::fprintf(file, "{\"id\": %d, \"text\": \"%s\"}\n", i, text.c_str());
  }
  std::fclose(file);
  const double seconds =
      seconds_of([&] { build_data({.inputs = {input}, .output = folder + "/built"}, [](const BuildProgress&) {}); });
  return static_cast<double>(std::filesystem::file_size(input)) / seconds / (1 << 20);
}

// Compared with Megatron's preprocess_data.py, alternating, with two workers each. The goal is three times its speed.
Row preprocess_row(const std::string& folder) {
  const json results = python_results(PREPROCESS_PEER_SCRIPT " " CONCORD_PROGRAM " " + folder + "/preprocess");
  const std::optional<double> peer = peer_of(results, "peer");
  return {"data: build of JSONL, BPE of 32,000 tokens, two workers",
          results.value("ours", 0.0),
          peer,
          "MiB/s",
          peer ? std::optional(3 * *peer) : std::nullopt,
          true};
}

std::vector<Row> measure(const std::string& folder) {
  const std::string prefix = folder + "/corpus";
  write_synthetic_corpus(prefix, 1, kTokens);
  const json peer = peer_results(prefix);
  return {
      {"data: numpy's shuffle of 10 M indices", shuffle_seconds(), peer_of(peer, "shuffle"), "s",
       peer_of(peer, "shuffle")},
      {"data: GPT indices, 2 M sequences, 1 M samples of 4096", indices_seconds(), {}, "s", {}},
      {"data: making 4 x 4096 tokens", making_seconds(prefix), peer_of(peer, "batch"), "s", 0.01 * kStepSeconds},
      {"data: next() of 4 x 4096 tokens made ahead", waiting_seconds(prefix), peer_of(peer, "batch"), "s",
       0.01 * kStepSeconds},
      {"data: build of JSONL, byte tokenizer", build_speed(folder), {}, "MiB/s", {}, true},
      preprocess_row(folder),
  };
}

json json_of(const Row& row) {
  json result = {{"name", row.name}, {"ours", row.ours}, {"peer", nullptr}, {"unit", row.unit},
                 {"ratio", nullptr}, {"goal", nullptr},  {"met", nullptr}};
  if (row.peer) result["peer"] = *row.peer;
  if (row.peer) result["ratio"] = row.more_is_better ? row.ours / *row.peer : *row.peer / row.ours;
  if (row.goal) result["goal"] = *row.goal;
  if (row.goal) result["met"] = row.met();
  return result;
}

int run(bool as_json) {
  std::string folder = (std::filesystem::temp_directory_path() / "concord_data_bench_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  const std::vector<Row> rows = measure(folder);
  std::filesystem::remove_all(folder);
  json all = json::array();
  for (const Row& row : rows) {
    all.push_back(json_of(row));
    if (as_json) continue;
    std::printf("%-55s %10.4g %-6s peer %-10s goal %-8s %s\n", row.name.c_str(), row.ours, row.unit.c_str(),
                row.peer ? std::to_string(*row.peer).c_str() : "-", row.goal ? std::to_string(*row.goal).c_str() : "-",
                row.goal ? (row.met() ? "met" : "NOT MET") : "");
  }
  if (as_json) std::printf("%s\n", all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && std::strcmp(argv[1], "--json") != 0)) {
    std::fprintf(stderr, "usage: data_bench [--json]\n");
    return 2;
  }
  return concord::run(argc == 2);
}
