// Saving and loading the whole state of a run (weights, fp32 AdamW state), compared with torch.distributed.checkpoint
// with the same bytes and with plain files, in the same run:
//
//   checkpoint_bench [--json]            4 ranks on this machine's cpu, 100 million parameters
//   checkpoint_bench device MODEL [DIR [alone]]  one rank on the device of CONCORD_PLATFORM; MODEL is 0.5b or 1.5b
//                                        (bf16); alone: without torch.distributed.checkpoint
//   checkpoint_bench rank MODEL DIR      what each rank does; rank 0 prints one JSON document
//
// Files go to DIR, otherwise to the folder for temporary files. CONCORD_PYTHON is a Python with torch. Loading is
// measured warm, with the files in the page cache, for both.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/optimizer_files.h"
#include "core/checkpoint/write/save_job.h"
#include "core/data_parallel/ddp.h"
#include "core/mesh/agreement.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/optim/optimizer.h"
#include "tests/performance/bench_program.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kPiece = 16 << 20;

struct Shape {
  int64_t hidden, intermediate, layers, heads, kv_heads, vocabulary;
  bool bf16, tied;
  int runs;  // the best one counts
};
const std::map<std::string, Shape> kShapes = {{"100m", {768, 2048, 10, 12, 4, 24576, false, false, 4}},
                                              {"0.5b", {896, 4864, 24, 14, 2, 151936, true, true, 4}},
                                              {"1.5b", {1536, 8960, 28, 12, 2, 151936, true, true, 2}}};

std::string config_of(const Shape& shape) {
  return Json{{"architectures", {"Qwen2ForCausalLM"}},
              {"model_type", "qwen2"},
              {"hidden_size", shape.hidden},
              {"intermediate_size", shape.intermediate},
              {"num_hidden_layers", shape.layers},
              {"num_attention_heads", shape.heads},
              {"num_key_value_heads", shape.kv_heads},
              {"vocab_size", shape.vocabulary},
              {"max_position_embeddings", 4096},
              {"rms_norm_eps", 1e-6},
              {"rope_theta", 1e6},
              {"tie_word_embeddings", shape.tied},
              {"hidden_act", "silu"}}
      .dump();
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Returns the seconds of the slowest rank.
double slowest(ParallelContext& job, const std::function<void()>& body) {
  job.world_group().barrier().wait();
  const auto nanoseconds = static_cast<int64_t>(seconds_of(body) * 1e9);
  return static_cast<double>(all_reduce_scalar(job, nanoseconds, ReduceOp::kMax)) * 1e-9;
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int64_t bytes_in(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

// Writes this rank's share durably, with one thread.
void write_plainly(const std::string& path, int64_t bytes) {
  static const std::vector<char> piece(kPiece, 'x');
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  for (int64_t done = 0; done < bytes; done += kPiece) {
    if (::write(file, piece.data(), static_cast<size_t>(std::min(kPiece, bytes - done))) < 0) std::abort();
  }
  if (::fsync(file) != 0) std::abort();
  ::close(file);
}

// Reads all bytes of the weights and this rank's share of the others, with one thread.
void read_plainly(const std::string& folder, int64_t rank, int64_t world) {
  static std::vector<char> piece(kPiece);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool is_shared = entry.path().filename().string().starts_with("optimizer");
    const auto size = static_cast<int64_t>(entry.file_size());
    const int64_t begin = is_shared ? size * rank / world : 0, end = is_shared ? size * (rank + 1) / world : size;
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    for (int64_t at = begin; at < end; at += kPiece) {
      if (::pread(file, piece.data(), static_cast<size_t>(std::min(kPiece, end - at)), at) < 0) std::abort();
    }
    ::close(file);
  }
}

class RankBench {
 public:
  RankBench(const std::string& model, std::string folder)
      : shape_(kShapes.at(model)),
        folder_(std::move(folder)),
        job_(initialize({})),
        args_{.dtype = shape_.bf16 ? c10::ScalarType::BFloat16 : c10::ScalarType::Float},
        model_(AutoModel::from_config(parse_model_config(config_of(shape_), "config.json"), args_, job_)),
        ddp_(chunks(), job_, {.use_distributed_optimizer = true}),
        optimizer_(ddp_, {}) {}

  Json measure() {
    const at::NoGradGuard no_grad;
    Json found;
    // Alternating, since the throughput of a disk changes from minute to minute.
    const std::string plain = folder_ + "/plain-" + std::to_string(job_.rank());
    double save = 1e30, plain_write = 1e30;
    int64_t bytes = 0;
    for (int i = 0; i < shape_.runs; ++i) {
      remove("live");
      save = std::min(save, slowest(job_, [&] { start("live", SaveJob::Source::live)->wait(); }));
      bytes = bytes_in(folder_ + "/live");
      plain_write = std::min(plain_write, slowest(job_, [&] { write_plainly(plain, bytes / job_.world()); }));
      fs::remove(plain);
    }
    found["save"] = save;
    found["plain_write"] = plain_write;
    found["bytes"] = bytes;
    std::vector<double> stalls;
    for (int i = 0; i < shape_.runs; ++i) {
      remove("copy");
      std::unique_ptr<SaveJob> save_job;
      stalls.push_back(slowest(job_, [&] { save_job = start("copy", SaveJob::Source::copy); }));
      save_job->wait();
    }
    remove("copy");  // room for the peer
    found["stalls"] = stalls;
    std::vector<double> loads, loads_together, plain_reads;
    for (int i = 0; i < 2 * shape_.runs + 1; ++i) {
      plain_reads.push_back(slowest(job_, [&] { read_plainly(folder_ + "/live", job_.rank(), job_.world()); }));
      loads.push_back(slowest(job_, [&] { load(/*together=*/false); }));
      loads_together.push_back(slowest(job_, [&] { load(/*together=*/true); }));
    }
    found["plain_read"] = median(plain_reads);
    found["load"] = median(loads);
    found["load_together"] = median(loads_together);
    found["loads"] = loads;
    found["plain_reads"] = plain_reads;
    remove("live");
    return found;
  }
  bool is_first() const { return job_.rank() == 0; }

 private:
  std::vector<DistributedDataParallel::Chunk> chunks() {
    std::vector<DistributedDataParallel::Chunk> chunks(model_.size());
    for (size_t i = 0; i < model_.size(); ++i) {
      for (Parameter& parameter : model_[i].parameters()) chunks[i].push_back(&parameter);
    }
    return chunks;
  }
  void remove(const std::string& name) {
    if (job_.rank() == 0) fs::remove_all(folder_ + "/" + name);
    job_.world_group().barrier().wait();
  }
  std::unique_ptr<SaveJob> start(const std::string& name, SaveJob::Source source) {
    HfSaveOptions options{.manifest = true};
    options.more.push_back(saved_tensors(optimizer_.state_tensors(), optimizer_.saved_state()));
    job_.device().synchronize();
    auto save = model_.start_save(folder_ + "/" + name, std::move(options), source, plan_);
    plan_ = save->plan();
    return save;
  }
  // |together|: each byte of the weights is read by one rank and sent to the others.
  void load(bool together) {
    load_hf_weights(folder_ + "/live", model_.parameters(), shard_place(job_.layout(), job_.rank()),
                    {.sharing = together ? &job_ : nullptr});
    optimizer_.load_state(OptimizerFiles(folder_ + "/live", 1), together);
    job_.device().synchronize();
  }

  Shape shape_;
  std::string folder_;
  ParallelContext& job_;
  ModelArgs args_;
  VirtualModels model_;
  DistributedDataParallel ddp_;
  Optimizer optimizer_;
  std::shared_ptr<const GlobalSavePlan> plan_;
};

int run_rank(const std::string& model, const std::string& folder) {
  RankBench bench(model, folder);
  const Json found = bench.measure();
  if (bench.is_first()) std::printf("%s\n", found.dump().c_str());
  finalize();
  return 0;
}

// Returns the last line of |command|'s output, as JSON.
std::optional<Json> last_line(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string line, last;
  char text[4096];
  while (std::fgets(text, sizeof text, pipe) != nullptr) {
    line += text;
    if (!line.ends_with('\n')) continue;
    if (line.find('{') != std::string::npos) last = line.substr(line.find('{'));
    line.clear();
  }
  pclose(pipe);  // the peer may fail after it has printed a part
  if (last.empty()) return std::nullopt;
  return Json::parse(last, nullptr, false);
}

struct Row {
  std::string name;
  double ours;
  std::optional<double> peer;
  std::string unit;
  std::optional<double> goal;
};

Json json_of(const Row& row) {
  Json json = {{"name", row.name}, {"ours", row.ours}, {"peer", nullptr}, {"unit", row.unit},
               {"ratio", nullptr}, {"goal", nullptr},  {"met", nullptr}};
  if (row.goal) json["goal"] = *row.goal;
  if (!row.peer) return json;
  json["peer"] = *row.peer;
  json["ratio"] = row.ours / *row.peer;
  if (row.goal) json["met"] = row.ours / *row.peer >= *row.goal;
  return json;
}

Json compare(const std::string& model, int ranks, const std::string& folder, bool with_peer) {
  const char* python = std::getenv("CONCORD_PYTHON");
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const std::optional<Json> ours = last_line(std::string(PROGRAM) + " launch --nproc " + std::to_string(ranks) +
                                             " -- " + program + " rank " + model + " " + folder + "/ours");
  if (!ours) return Json::array();
  std::fprintf(stderr, "ours: %s\n", ours->dump().c_str());  // the peer may take minutes
  const double gigabytes = (*ours)["bytes"].get<double>() / 1e9;
  std::optional<Json> dcp;
  if (with_peer) {
    dcp = last_line(std::string(PROGRAM) + " launch --nproc " + std::to_string(ranks) + " -- " +
                    (python != nullptr ? python : "python3") + " " PEER_SCRIPT " " + model + " " + folder + "/dcp");
    if (dcp) std::fprintf(stderr, "torch.distributed.checkpoint: %s\n", dcp->dump().c_str());
  }
  const auto rate = [&](const std::optional<Json>& from, const char* key) -> std::optional<double> {
    if (!from || !from->is_object() || !from->contains(key)) return std::nullopt;
    return gigabytes / (*from)[key].get<double>();
  };
  std::vector<double> stalls = (*ours)["stalls"].get<std::vector<double>>();
  const double stall = *std::min_element(stalls.begin(), stalls.end());
  std::optional<double> dcp_stall;
  if (dcp && dcp->is_object() && dcp->contains("stall")) dcp_stall = (*dcp)["stall"].get<double>();
  const std::string name = "checkpoint: " + model + ", " + std::to_string(ranks) + " ranks: ";
  return Json::array(
      {json_of({name + "save beside a plain write", *rate(ours, "save"), rate(ours, "plain_write"), "GB/s", 0.9}),
       json_of({name + "save beside torch.distributed.checkpoint", *rate(ours, "save"), rate(dcp, "save"), "GB/s", 3}),
       json_of({name + "load beside a plain read", *rate(ours, "load"), rate(ours, "plain_read"), "GB/s", 0.9}),
       json_of({name + "load, read once and sent on, beside a plain read", *rate(ours, "load_together"),
                rate(ours, "plain_read"), "GB/s", std::nullopt}),
       json_of({name + "load beside torch.distributed.checkpoint", *rate(ours, "load"), rate(dcp, "load"), "GB/s", 3}),
       json_of({name + "stall of an asynchronous save, inverse", 1 / stall,
                dcp_stall ? std::optional(1 / *dcp_stall) : std::nullopt, "1/s", std::nullopt})});
}

void print(const Json& rows, bool as_json) {
  if (as_json) {
    std::printf("%s\n", rows.dump(1).c_str());
    return;
  }
  for (const Json& row : rows) {
    std::printf("%-75s %8.3f %-5s peer %8.3f   ratio %.2f   goal %s\n", row["name"].get<std::string>().c_str(),
                row["ours"].get<double>(), row["unit"].get<std::string>().c_str(),
                row["peer"].is_null() ? 0 : row["peer"].get<double>(),
                row["ratio"].is_null() ? 0 : row["ratio"].get<double>(), row["goal"].dump().c_str());
  }
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  if (args.size() == 3 && args[0] == "rank") return concord::run_rank(args[1], args[2]);
  const bool on_device = !args.empty() && args[0] == "device";
  if (!on_device) setenv("CONCORD_PLATFORM", "cpu", 0);
  const concord::tests::TemporaryFolder temporary;
  const std::string folder = on_device && args.size() > 2 ? args[2] : temporary.path();
  std::filesystem::create_directories(folder);
  const bool as_json = !on_device && concord::bench::read_options(argc, argv).json;
  const bool with_peer = args.size() < 4 || args[3] != "alone";
  concord::print(concord::compare(on_device ? args.at(1) : "100m", on_device ? 1 : 4, folder, with_peer), as_json);
  return 0;
}
