#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>

#include "core/config_error.h"
#include "core/mesh/parallel_context.h"
#include "core/models/hf_dtype.h"
#include "core/models/hf_plan.h"
#include "core/models/hf_weights.h"
#include "core/safetensors/index.h"
#include "platform/loader/text.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using loader::cat;
using safetensors::FilePart;
using safetensors::TensorShape;

constexpr int64_t kStagedBytes = 8 << 20;
constexpr const char* kNonceFile = ".concord-nonce";
constexpr const char* kGenerationConfig = "generation_config.json";
// Of a source folder; what ends in '*' are beginnings.
constexpr const char* kCarried[] = {kGenerationConfig,   "tokenizer*",     "special_tokens_map.json",
                                    "added_tokens.json", "vocab.json",     "vocab.txt",
                                    "merges.txt",        "chat_template*", "spiece.model"};

std::string random_text() {
  std::random_device device;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", device(), device());
  return text;
}

std::vector<TensorShape> tensors_of(std::span<Parameter* const> parameters) {
  std::vector<TensorShape> tensors;
  for (const Parameter* parameter : parameters) {
    const std::optional<safetensors::DType> dtype = file_type(parameter->value.scalar_type());
    if (!dtype || !parameter->value.is_contiguous()) {
      throw ConfigError(cat("parameter ", parameter->spec.name, " is ", c10::toString(parameter->value.scalar_type()),
                            "; contiguous Float, Double, BFloat16 or Half can be saved"));
    }
    for (GlobalTensor& tensor : global_tensors(parameter->spec))
      tensors.push_back({std::move(tensor.name), *dtype, std::move(tensor.shape)});
  }
  return tensors;
}

// A list of tensors as text and back: the header of a file that has them.
std::string list_text(std::vector<TensorShape> tensors) {
  const safetensors::FilePlan plan = safetensors::plan_file(std::move(tensors), {}, "the list of a stage's tensors");
  return cat(plan.file_bytes - plan.head.size(), "\n", plan.head.substr(safetensors::kLengthBytes));
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
  std::ifstream source(from, std::ios::binary);
  FilePart target(to.string(), FilePart::Mode::create);
  std::vector<char> piece(1 << 20);
  for (uint64_t place = 0; source; place += static_cast<uint64_t>(source.gcount())) {
    source.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    target.write(place, std::as_bytes(std::span(piece.data(), static_cast<size_t>(source.gcount()))));
  }
  if (!source.eof()) throw std::runtime_error(cat(from.string(), ": cannot be read"));
  target.sync();
}

// |temporary| becomes |folder|; what was there before is gone afterwards, and at no time is there neither of them where
// the file system can exchange names.
void put_in_place(const std::string& temporary, const std::string& folder) {
  if (!fs::exists(folder) || fs::is_empty(folder)) {
    safetensors::rename_durably(temporary, folder);  // replaces an empty folder
    return;
  }
  const long code = ::syscall(SYS_renameat2, AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE);
  if (code == 0) {
    safetensors::sync_folder(fs::absolute(folder).parent_path().string());
    fs::remove_all(temporary);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS)
    throw std::runtime_error(cat(temporary, ": cannot be exchanged with ", folder, ": ", std::strerror(errno)));
  const std::string old = temporary + ".old";
  safetensors::rename_durably(folder, old);
  safetensors::rename_durably(temporary, folder);
  fs::remove_all(old);
}

// One save of one job: steps that all ranks take together. A rank that fails in a step tells the others, and all of
// them end there.
class Save {
 public:
  Save(std::string folder, std::span<Parameter* const> parameters, ParallelContext& context,
       const HfSaveOptions& options)
      : folder_(std::move(folder)),
        parameters_(parameters),
        context_(context),
        options_(options),
        store_(context.store()),
        // The same number on all ranks, because all ranks save equally often.
        keys_(cat("hf_save/", store_.add(cat("hf_save/of_rank/", context.rank()), 1), "/")) {
    while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
  }

  void run() {
    try {
      step("list", [&] { post_list(); });
      step("begin", [&] { read_lists(), begin(); });
      step("see", [&] { see_the_folder(); });
      step("write", [&] { write(); });
      step("finish", [&] { finish(); });
    } catch (...) {
      std::error_code ignored;
      if (is_first() && !temporary_.empty()) fs::remove_all(temporary_, ignored);
      throw;
    }
  }

 private:
  bool is_first() const { return context_.rank() == 0; }

  void step(const std::string& name, const std::function<void()>& body) {
    std::string problem;
    try {
      body();
    } catch (const ConfigError& error) {
      problem = cat("C", error.what());
    } catch (const std::exception& error) {
      problem = cat("R", error.what());
    }
    if (!problem.empty()) store_.set(keys_ + name + "/problem", cat(problem, " (rank ", context_.rank(), ")"));
    if (store_.add(keys_ + name + "/count", 1) == context_.world()) store_.set(keys_ + name + "/done", "");
    store_.wait(std::vector{keys_ + name + "/done"}, context_.timeout());
    if (!store_.has(keys_ + name + "/problem")) return;
    problem = store_.get(keys_ + name + "/problem", context_.timeout());
    if (problem.front() == 'C') throw ConfigError(problem.substr(1));
    throw std::runtime_error(problem.substr(1));
  }

  std::string list_key(int64_t stage) const { return cat(keys_, "list/", stage); }

  // All ranks of a stage have the same tensors, each a part of them; one of them tells.
  void post_list() {
    const RankCoordinates& at = context_.coordinates();
    const std::vector<TensorShape> tensors = tensors_of(parameters_);
    if (at.tp == 0 && at.cp == 0 && at.dp == 0) store_.set(list_key(at.pp), list_text(tensors));
  }

  void read_lists() {
    std::vector<TensorShape> all;
    for (int64_t stage = 0; stage < context_.layout().pp(); ++stage) {
      for (TensorShape& tensor : parse_list(store_.get(list_key(stage), context_.timeout()))) {
        if (stage < context_.coordinates().pp) of_earlier_stages_.insert(tensor.name);
        all.push_back(std::move(tensor));
      }
    }
    plan_ = plan_hf_folder(std::move(all), options_.max_shard_bytes);
    files_.resize(plan_.files.size());
  }

  void begin() {
    if (!is_first()) return;
    if (fs::exists(folder_) && !(fs::is_directory(folder_) && (options_.overwrite || fs::is_empty(folder_)))) {
      throw ConfigError(cat(folder_, ": exists already; name another folder, or ask to overwrite it"));
    }
    const std::string nonce = random_text();
    const fs::path parent = fs::path(folder_).parent_path();
    if (!parent.empty()) fs::create_directories(parent);
    temporary_ = cat(folder_, ".tmp-", nonce);
    fs::create_directory(temporary_);
    write_text(temporary_ + "/" + kNonceFile, nonce);
    for (const HfFolderPlan::File& file : plan_.files) {
      FilePart part(temporary_ + "/" + file.name, FilePart::Mode::create, file.plan.file_bytes);
      part.write(0, std::as_bytes(std::span(file.plan.head)));
      part.sync();
    }
    store_.set(keys_ + "folder", temporary_);
    store_.set(keys_ + "nonce", nonce);
  }

  void see_the_folder() {
    if (is_first()) return;
    temporary_ = store_.get(keys_ + "folder", context_.timeout());
    std::string text;
    std::ifstream(temporary_ + "/" + kNonceFile) >> text;
    if (text != store_.get(keys_ + "nonce", context_.timeout())) {
      throw ConfigError(cat(temporary_,
                            ": was made by rank 0 and cannot be seen here; all ranks write into one folder, so ",
                            folder_, " has to be on a file system that they share"));
    }
  }

  void write() {
    for (const Parameter* parameter : parameters_) {
      if (!writes_shard(parameter->spec, context_.layout(), context_.rank())) continue;
      const at::Tensor value = parameter->used().detach().view({-1});
      for (const ShardRun& run : shard_runs(parameter->spec, shard_place(context_.layout(), context_.rank()))) {
        if (of_earlier_stages_.count(run.tensor) == 0) write_run(run, value);
      }
    }
    for (const auto& file : files_) {
      if (file) file->sync();
    }
    files_.clear();
  }

  void write_run(const ShardRun& run, const at::Tensor& value) {
    const HfFolderPlan::Place place = plan_.find(run.tensor);
    const int64_t size = value.element_size(), at_once = value.device().is_cpu() ? run.count : kStagedBytes / size;
    const uint64_t begin = plan_.files[place.file].plan.place_of(*place.tensor);
    for (int64_t done = 0; done < run.count; done += at_once) {
      const int64_t end = std::min(done + at_once, run.count);
      const at::Tensor host = value.narrow(0, run.local + done, end - done).cpu();
      const auto* bytes = static_cast<const std::byte*>(host.data_ptr());
      for (int64_t i = done, length = 0; i < end; i += length) {  // a row, or the part of one that is staged
        length = std::min(run.run_length - i % run.run_length, end - i);
        const int64_t global = run.offset + i / run.run_length * run.run_stride + i % run.run_length;
        file(place.file)
            .write(begin + static_cast<uint64_t>(global * size),
                   {bytes + (i - done) * size, static_cast<size_t>(length * size)});
      }
    }
  }

  FilePart& file(size_t index) {
    if (!files_[index])
      files_[index] = std::make_unique<FilePart>(temporary_ + "/" + plan_.files[index].name, FilePart::Mode::open);
    return *files_[index];
  }

  void finish() {
    if (!is_first()) return;
    if (plan_.has_index())
      write_text(temporary_ + "/" + safetensors::kIndexFile, safetensors::index_json(plan_.file_of, plan_.total_bytes));
    if (!options_.config_json.empty()) write_text(temporary_ + "/config.json", options_.config_json);
    const bool has_tokenizer = !options_.source.empty() && carry_over();
    for (const auto& [name, text] : options_.tokenizer_files) {
      if (!has_tokenizer) write_text(temporary_ + "/" + name, text);
    }
    fs::remove(temporary_ + "/" + kNonceFile);
    safetensors::sync_folder(temporary_);
    put_in_place(temporary_, folder_);
  }

  // Whether a tokenizer was among it.
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
  Store& store_;
  std::string keys_;
  std::set<std::string> of_earlier_stages_;  // tensors that this rank's stage shares with one before it
  HfFolderPlan plan_;
  std::string temporary_;
  std::vector<std::unique_ptr<FilePart>> files_;  // opened when something goes there
};

}  // namespace

void save_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, ParallelContext& context,
                     const HfSaveOptions& options) {
  Save(folder, parameters, context, options).run();
}

}  // namespace concord
