#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>

#include "core/config_error.h"
#include "core/input_file.h"
#include "core/mesh/parallel_context.h"
#include "core/models/hf_dtype.h"
#include "core/models/hf_plan.h"
#include "core/models/hf_weights.h"
#include "core/models/save_folder.h"
#include "core/quoted.h"
#include "core/safetensors/index.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using safetensors::FilePart;
using safetensors::TensorShape;

constexpr int64_t kStagedBytes = 8 << 20;
constexpr size_t kLongestProblem = 2000;  // bytes of a message to the other ranks
constexpr const char* kGenerationConfig = "generation_config.json";
// Files of a source folder; a trailing '*' marks a prefix.
constexpr const char* kCarried[] = {kGenerationConfig,   "tokenizer*",     "special_tokens_map.json",
                                    "added_tokens.json", "vocab.json",     "vocab.txt",
                                    "merges.txt",        "chat_template*", "spiece.model"};

std::vector<TensorShape> tensors_of(std::span<Parameter* const> parameters) {
  std::vector<TensorShape> tensors;
  for (const Parameter* parameter : parameters) {
    const std::optional<safetensors::DType> dtype = file_type(parameter->value.scalar_type());
    if (!dtype || !parameter->value.is_contiguous()) {
      throw ConfigError(fmt::format("parameter {} is {}; only contiguous Float, Double, BFloat16 or Half can be saved",
                                    parameter->spec.name, c10::toString(parameter->value.scalar_type())));
    }
    for (GlobalTensor& tensor : global_tensors(parameter->spec))
      tensors.push_back({std::move(tensor.name), *dtype, std::move(tensor.shape)});
  }
  return tensors;
}

// A list of tensors as text and back: the header of a file that contains them.
std::string list_text(std::vector<TensorShape> tensors) {
  const safetensors::FilePlan plan = safetensors::plan_file(std::move(tensors), {}, "the list of a stage's tensors");
  return fmt::format("{}\n{}", plan.file_bytes - plan.head.size(), plan.head.substr(safetensors::kLengthBytes));
}
std::vector<TensorShape> parse_list(const std::string& text) {
  const size_t line = text.find('\n');
  const safetensors::Header header = safetensors::parse_header(
      std::string_view(text).substr(line + 1), std::stoull(text.substr(0, line)), "the list of a stage's tensors");
  return {header.tensors.begin(), header.tensors.end()};
}

bool is_carried(const std::string& name) {
  for (const std::string_view pattern : kCarried) {
    if (pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern) return true;
  }
  return false;
}

void write_text(const std::string& path, const std::string& text) {
  FilePart file(path, FilePart::Mode::create, text.size());
  file.write(0, std::as_bytes(std::span(text)));
  file.sync();
}

void carry_file(const fs::path& from, const fs::path& to) {
  const InputFile source(from.string());
  FilePart target(to.string(), FilePart::Mode::create);
  std::vector<char> piece(1 << 20);
  for (uint64_t place = 0; place < source.size();) {
    const ssize_t got = ::pread(source.fd(), piece.data(), piece.size(), static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw std::runtime_error(fmt::format("{}: cannot be read completely", from.string()));
    target.write(place, std::as_bytes(std::span(piece.data(), static_cast<size_t>(got))));
    place += static_cast<uint64_t>(got);
  }
  target.sync();
}

// |value| of all ranks, reduced. Waits: for all of them, as every exchange here does.
int64_t reduced(ParallelContext& job, int64_t value, ReduceOp op) {
  const at::Tensor tensor = at::full({1}, value, at::kLong).to(job.torch_device());
  job.world_group().all_reduce(tensor, op).synchronize();
  return tensor.item<int64_t>();
}

// The |text| of rank |root|, on all ranks.
std::string broadcast_text(ParallelContext& job, const std::string& text, int64_t root) {
  const bool is_root = job.rank() == root;
  const int64_t size = reduced(job, is_root ? static_cast<int64_t>(text.size()) : 0, ReduceOp::kMax);
  at::Tensor bytes = at::zeros({size}, at::kByte);
  if (is_root) std::copy(text.begin(), text.end(), static_cast<char*>(bytes.data_ptr()));
  bytes = bytes.to(job.torch_device());
  if (size > 0) job.world_group().broadcast(bytes, root).synchronize();
  bytes = bytes.cpu();
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(size)};
}

// One save of one job: steps that all ranks take together. They exchange messages through their communicator: no other
// process can interfere, a rank that exits or stops is noticed as in any collective, and nothing is left behind. A rank
// that fails in a step tells the others, and all of them stop there.
class Save {
 public:
  Save(std::string folder, std::span<Parameter* const> parameters, ParallelContext& context,
       const HfSaveOptions& options)
      : folder_(std::move(folder)), parameters_(parameters), context_(context), options_(options) {
    while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
    sets_.push_back({.stem = safetensors::kModelStem});
    for (const SavedTensors& more : options_.more) sets_.push_back({.stem = more.stem});
  }

  void run() {
    try {
      std::vector<std::string> lists;
      std::string nonce;
      step([&] {
        lists.push_back(list_text(tensors_of(parameters_)));
        for (const SavedTensors& more : options_.more) lists.push_back(list_text(more.tensors));
      });
      std::vector<std::vector<std::string>> of_stages;
      for (const std::string& list : lists) of_stages.push_back(exchange_lists(list));
      step([&] {
        for (size_t i = 0; i < sets_.size(); ++i) read_lists(of_stages[i], &sets_[i]);
        if (is_first()) nonce = begin();
      });
      nonce = broadcast_text(context_, nonce, 0);
      step([&] { see_the_folder(nonce); });
      step([&] { write(); });
      const int64_t written = reduced(context_, written_, ReduceOp::kSum);
      step([&] {
        if (is_first()) finish(written);
      });
    } catch (const Error& error) {
      throw Error(error.status(), fmt::format("{}; while saving {}", error.what(), folder_));
    }
  }

 private:
  // Tensors that lie in files of one stem.
  struct Set {
    std::string stem;
    std::set<std::string> of_earlier_stages = {};  // tensors that this rank's stage shares with an earlier one
    HfFolderPlan plan = {};
    std::vector<std::unique_ptr<FilePart>> files = {};  // opened on first write
  };

  bool is_first() const { return context_.rank() == 0; }

  // |body| waits for no other rank.
  void step(const std::function<void()>& body) {
    std::string problem;
    try {
      body();
    } catch (const ConfigError& error) {
      problem = fmt::format("C{}", error.what());
    } catch (const std::exception& error) {
      problem = fmt::format("R{}", error.what());
    }
    // The lowest rank with an error, counted from the end: 0 if there is none.
    const int64_t found = reduced(context_, problem.empty() ? 0 : context_.world() - context_.rank(), ReduceOp::kMax);
    if (found == 0) return;
    const int64_t rank = context_.world() - found;
    problem = broadcast_text(context_, problem, rank);
    context_.flight().peers().blame(rank);
    const std::string words =
        fmt::format("{} (rank {})", printable(std::string_view(problem).substr(1), kLongestProblem), rank);
    if (problem.front() == 'C') throw ConfigError(words);
    throw std::runtime_error(words);
  }

  // What each stage has. All ranks of a stage have the same tensors, each a part of them; the first one reports.
  std::vector<std::string> exchange_lists(const std::string& own) {
    std::vector<std::string> lists;
    for (int64_t stage = 0; stage < context_.layout().pp(); ++stage)
      lists.push_back(broadcast_text(context_, own, context_.layout().rank_at(0, 0, 0, stage)));
    return lists;
  }

  void read_lists(const std::vector<std::string>& lists, Set* set) {
    std::vector<TensorShape> all;
    for (size_t stage = 0; stage < lists.size(); ++stage) {
      for (TensorShape& tensor : parse_list(lists[stage])) {
        if (static_cast<int64_t>(stage) < context_.coordinates().pp) set->of_earlier_stages.insert(tensor.name);
        all.push_back(std::move(tensor));
      }
    }
    set->plan = plan_hf_folder(std::move(all), options_.max_shard_bytes, set->stem);
    set->files.resize(set->plan.files.size());
  }

  // Returns the nonce of the created folder.
  std::string begin() {
    if (fs::exists(folder_) && !(fs::is_directory(folder_) && (options_.overwrite || fs::is_empty(folder_)))) {
      throw ConfigError(fmt::format("{}: already exists; choose another folder, or overwrite it", folder_));
    }
    remove_abandoned_saves(fs::path(folder_).parent_path().string());
    const std::string nonce = make_nonce();
    made_.emplace(folder_, nonce);
    temporary_ = temporary_folder(folder_, nonce);
    for (const Set& set : sets_) {
      for (const HfFolderPlan::File& file : set.plan.files) {
        FilePart part(temporary_ + "/" + file.name, FilePart::Mode::create, file.plan.file_bytes);
        part.write(0, std::as_bytes(std::span(file.plan.head)));
        part.sync();
      }
    }
    return nonce;
  }

  void see_the_folder(const std::string& nonce) {
    temporary_ = temporary_folder(folder_, nonce);
    if (sees_temporary_folder(folder_, nonce)) return;
    throw ConfigError(
        fmt::format("{}: was created by rank 0 but is not visible here; all ranks write into one folder, so {} must be "
                    "on a shared file system",
                    temporary_, folder_));
  }

  void write() {
    for (const Parameter* parameter : parameters_) {
      if (!writes_shard(parameter->spec, context_.layout(), context_.rank())) continue;
      write_part({shard_runs(parameter->spec, shard_place(context_.layout(), context_.rank())),
                  parameter->used().detach().view({-1})},
                 &sets_[0]);
    }
    for (size_t i = 0; i < options_.more.size(); ++i) {
      for (const SavedTensors::Part& part : options_.more[i].parts) write_part(part, &sets_[i + 1]);
    }
    for (Set& set : sets_) {
      for (const auto& file : set.files) {
        if (file) file->sync();
      }
      set.files.clear();
    }
  }

  void write_part(const SavedTensors::Part& part, Set* set) {
    for (const ShardRun& run : part.runs) {
      if (set->of_earlier_stages.count(run.tensor) == 0) write_run(run, part.values, set);
    }
  }

  void write_run(const ShardRun& run, const at::Tensor& value, Set* set) {
    const HfFolderPlan::Place place = set->plan.find(run.tensor);
    const int64_t size = value.element_size(), at_once = value.device().is_cpu() ? run.count : kStagedBytes / size;
    const uint64_t begin = set->plan.files[place.file].plan.place_of(*place.tensor);
    for (int64_t done = 0; done < run.count; done += at_once) {
      const int64_t end = std::min(done + at_once, run.count);
      const at::Tensor host = value.narrow(0, run.local + done, end - done).cpu();
      const auto* bytes = static_cast<const std::byte*>(host.data_ptr());
      for (int64_t i = done, length = 0; i < end; i += length) {  // a row, or the staged part of one
        length = std::min(run.run_length - i % run.run_length, end - i);
        const int64_t global = run.offset + i / run.run_length * run.run_stride + i % run.run_length;
        file(place.file, set)
            .write(begin + static_cast<uint64_t>(global * size),
                   {bytes + (i - done) * size, static_cast<size_t>(length * size)});
        written_ += length * size;
      }
    }
  }

  FilePart& file(size_t index, Set* set) {
    std::unique_ptr<FilePart>& file = set->files[index];
    if (!file) {
      file = std::make_unique<FilePart>(temporary_ + "/" + set->plan.files[index].name, FilePart::Mode::open);
    }
    return *file;
  }

  // |written|: the bytes that all ranks together report as written.
  void finish(int64_t written) {
    uint64_t needed = 0;
    for (const Set& set : sets_) needed += set.plan.total_bytes;
    if (written != static_cast<int64_t>(needed)) {
      throw std::runtime_error(
          fmt::format("{}: the ranks have written {} bytes of tensors, but it needs {}", folder_, written, needed));
    }
    for (const Set& set : sets_) {
      if (!set.plan.has_index()) continue;
      write_text(temporary_ + "/" + safetensors::index_file(set.stem),
                 safetensors::index_json(set.plan.file_of, set.plan.total_bytes));
    }
    if (!options_.config_json.empty()) write_text(temporary_ + "/config.json", options_.config_json);
    const bool has_tokenizer = !options_.source.empty() && carry_over();
    for (const auto& [name, text] : options_.tokenizer_files) {
      if (!has_tokenizer) write_text(temporary_ + "/" + name, text);
    }
    for (const auto& [name, text] : options_.more_files) write_text(temporary_ + "/" + name, text);
    made_->publish();
  }

  // Whether it included a tokenizer.
  bool carry_over() {
    bool has_tokenizer = false;
    for (const auto& entry : fs::directory_iterator(options_.source)) {
      const std::string name = entry.path().filename().string();
      const bool config = name == "config.json" && options_.config_json.empty();
      if (!entry.is_regular_file() || !(config || is_carried(name))) continue;
      carry_file(entry.path(), fs::path(temporary_) / name);
      has_tokenizer |= !config && name != kGenerationConfig;
    }
    return has_tokenizer;
  }

  std::string folder_;
  std::span<Parameter* const> parameters_;
  ParallelContext& context_;
  const HfSaveOptions& options_;
  std::string temporary_;
  std::optional<SaveFolder> made_;  // on rank 0
  int64_t written_ = 0;             // bytes, by this rank
  std::vector<Set> sets_;           // the weights, then options_.more
};

}  // namespace

void save_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, ParallelContext& context,
                     const HfSaveOptions& options) {
  Save(folder, parameters, context, options).run();
}

}  // namespace concord
