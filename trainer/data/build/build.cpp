#include "trainer/data/build/build.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/quoted.h"
#include "core/base/stable_hash.h"
#include "core/base/threads.h"
#include "platform/base/thread_safety.hpp"
#include "platform/base/unique_fd.hpp"
#include "trainer/data/build/build_media.h"
#include "trainer/data/build/build_shards.h"
#include "trainer/data/build/output_file.h"
#include "trainer/data/data_files.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/text/records.h"
#include "trainer/data/text/tokenizer.h"
#include "trainer/data/text/tokenizer_files.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWorkFolder = ".build";
constexpr const char* kPublishing = "/publishing";  // a file in the folder
constexpr std::string_view kPlanTitle = "concord data build";
constexpr int kFormat = 4;  // format of the folder; part of the plan
constexpr auto kReportEvery = std::chrono::milliseconds(500);

// Returns a hash of the given chat template, or of the files that may contain the tokenizer's own.
std::string template_hash(const BuildArguments& arguments) {
  if (!arguments.chat_template.empty())
    return fmt::format("{:016x}", stable_hash(MappedFile(arguments.chat_template).text()));
  std::string all;
  for (const auto& [name, text] : tokenizer_files(arguments.tokenizer)) {
    if (name != "tokenizer.json") all += name + "\n" + text + "\n";
  }
  return fmt::format("{:016x}", stable_hash(all));
}

// Returns everything that determines the output bytes, as text.
std::string plan_of(const BuildArguments& arguments, const std::vector<std::string>& inputs,
                    const Tokenizer& tokenizer) {
  std::string plan = fmt::format("{} {}\nsft {}, template {}, end of document {}, {} bytes a shard\ntokenizer {}",
                                 kPlanTitle, kFormat, arguments.sft, arguments.sft ? template_hash(arguments) : "-",
                                 arguments.append_eod, arguments.shard_bytes, tokenizer.name());
  if (arguments.tokenizer != "byte") plan += fmt::format(", {:016x}", stable_hash(MappedFile(tokenizer.name()).text()));
  if (arguments.dataset) plan += "\ndata set " + arguments.dataset->text();
  if (const MediaSettings& media = arguments.media; !media.processor.empty()) {
    plan += fmt::format(
        "\nimages {:016x}, from {}, {} to {} pixels, videos {} to {}, {} per second, at most {}, bad ones are {}, {} "
        "bytes a shard",
        stable_hash(media_processor_text(media.processor)), quoted(media.media_dir), media.image_min_pixels,
        media.image_max_pixels, media.video_min_pixels, media.video_max_pixels, media.video_fps, media.video_maxlen,
        media.skip_bad_images ? "left out" : "refused", arguments.media_shard_bytes);
  }
  for (const std::string& path : inputs) {
    const InputFile file(path);  // throws if it cannot be read
    plan += fmt::format("\ninput {}, {} bytes, changed {}", fs::absolute(path).string(), file.size(),
                        fs::last_write_time(path).time_since_epoch().count());
  }
  return plan + "\n";
}

int64_t shard_bytes_of(const BuildArguments& arguments) {
  if (arguments.media.processor.empty()) return arguments.shard_bytes;
  return std::min(arguments.shard_bytes, kMediaPieceBytes);
}

std::vector<std::string> input_files(const BuildArguments& arguments) {
  std::vector<std::string> files;
  for (const std::string& path : arguments.inputs) std::ranges::copy(data_files(path), std::back_inserter(files));
  for (const std::string& file : files) {
    if (!file.ends_with(".txt") && !file.ends_with(".jsonl") && !is_record_file(file))
      throw ConfigError(fmt::format("{}: the file name must end in .txt, .jsonl, {}", file, kRecordEndings));
  }
  return files;
}

// OUTPUT.build/, locked by one process at a time. The lock is released when the process exits, for any reason.
class WorkFolder {
 public:
  WorkFolder(const std::string& output, const std::string& plan, bool overwrite) : path_(output + kWorkFolder) {
    std::error_code error;
    check_is_ours();
    fs::create_directory(path_, error);
    if (error) throw ConfigError(fmt::format("cannot create folder {}: {}", path_, error.message()));
    lock_.reset(::open((path_ + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (!lock_) throw ConfigError(fmt::format("cannot write to {}: {}", path_, std::strerror(errno)));
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
      throw ConfigError(fmt::format("another process is already building {} (it holds {}/lock)", output, path_));
    }
    take_over(output, plan, overwrite);
  }

  const std::string& path() const { return path_; }
  std::string lines_of(size_t input) const { return fmt::format("{}/input-{:06}.jsonl", path_, input); }
  std::string shard(size_t number) const { return fmt::format("{}/shard-{:06}", path_, number); }
  // Removes the files that identify the folder last, so that a build that is killed here can continue.
  void remove() const {
    const std::vector<fs::directory_entry> entries(fs::directory_iterator(path_), {});
    for (const fs::directory_entry& entry : entries) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("shard-") || name.starts_with("input-")) fs::remove(entry.path());
    }
    fs::remove_all(path_);
  }
  // Marks that files with the names of the output belong to this build from now on.
  void begin_publishing() const { write_whole(path_ + kPublishing, ""); }

 private:
  // A build that was killed before it wrote its plan has left nothing else.
  void check_is_ours() const {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path_, error))) return;
    const std::string plan = path_ + "/plan";
    bool is_ours = fs::is_directory(fs::symlink_status(path_, error));
    if (is_ours && fs::is_regular_file(plan, error)) {
      is_ours = MappedFile(plan).text().starts_with(kPlanTitle);
    } else if (is_ours) {
      const fs::directory_iterator entries(path_, error);
      is_ours = std::all_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
        return entry.path().filename() == "lock" || entry.path().filename() == "plan.partial";
      });
    }
    if (is_ours) return;
    throw ConfigError(fmt::format(
        "{} was not written by data build, which needs this name; move it away, or choose another --output", path_));
  }

  // Resumes an earlier build of the same plan.
  void take_over(const std::string& output, const std::string& plan, bool overwrite) {
    const std::string file = path_ + "/plan";
    if (fs::exists(file) && MappedFile(file).text() == plan) return;
    if (fs::exists(file) && !overwrite) {
      throw ConfigError(
          fmt::format("{} contains an unfinished build of {} with other settings or inputs; use the same ones to "
                      "resume it, or --overwrite to start over",
                      path_, output));
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      if (entry.path().filename() != "lock") fs::remove_all(entry.path());
    }
    write_whole(file, plan);
  }

  static void write_whole(const std::string& file, std::string_view text) {
    OutputFile written(file);
    written.write(text);
    written.sync();
    written.publish();
  }

  std::string path_;
  UniqueFd lock_;
};

class Build {
 public:
  Build(const BuildArguments& arguments, const std::function<void(const BuildProgress&)>& report)
      : arguments_(arguments), report_(report), tools_(make_tools(arguments)) {
    const Tokenizer& tokenizer = *tools_.tokenizer;
    if (arguments_.append_eod && !arguments_.sft && !tokenizer.end_of_document()) {
      throw ConfigError(
          fmt::format("the tokenizer {} has no end-of-document token; use --append_eod false", tokenizer.name()));
    }
    const std::vector<std::string> files = input_files(arguments_);
    folder_ =
        std::make_unique<WorkFolder>(arguments_.output, plan_of(arguments_, files, tokenizer), arguments_.overwrite);
    write_lines_of_records(files);
    for (size_t i = 0; i < files.size(); ++i)
      inputs_.emplace_back(is_record_file(files[i]) ? folder_->lines_of(i) : files[i], files[i]);
    shards_ = cut_into_shards(inputs_, shard_bytes_of(arguments_));
    if (shards_.empty()) {
      folder_->remove();
      throw ConfigError(fmt::format("{}: file is empty", arguments_.inputs.front()));
    }
    progress_.shards = static_cast<int64_t>(shards_.size());
    for (const BuildShard& shard : shards_) progress_.bytes += shard.end - shard.begin;
  }

  BuildProgress run() {
    std::vector<std::string> names;
    for (size_t i = 0; i < shards_.size(); ++i) names.push_back(folder_->shard(i));
    if (arguments_.media.processor.empty()) {
      build_all();
      begin_publishing();
      join_shards(arguments_, names, *tools_.tokenizer);
    } else {
      join_media(MediaJoin(folder_->path(), names));
    }
    folder_->remove();
    return progress_;
  }

 private:
  void build_all() {
    find_missing();
    run_workers();
    if (progress_.documents == 0)
      throw ConfigError(fmt::format("{}: contains no documents", arguments_.inputs.front()));
  }

  // The data itself is renamed into place last.
  void begin_publishing() const {
    folder_->begin_publishing();
    write_tokenizer_files(arguments_.output, tokenizer_files(arguments_.tokenizer));
  }

  void join_media(MediaJoin join) {
    if (!join.has_begun()) build_all();
    const ShardCounts counts = join.run(arguments_.media_shard_bytes, most_workers());
    progress_.documents = counts.documents;
    progress_.tokens = counts.tokens;
    begin_publishing();
    join.publish(arguments_.output);
  }

  int64_t most_workers() const {
    const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
    return arguments_.workers > 0 ? arguments_.workers : cores;
  }

  // Converts several files at a time. Keeps the output of an earlier build.
  void write_lines_of_records(const std::vector<std::string>& files) const {
    std::atomic<size_t> next = 0;
    run_on_threads(std::min<int64_t>(most_workers(), std::ssize(files)), [&] {
      for (size_t i = next++; i < files.size(); i = next++) {
        if (!is_record_file(files[i]) || fs::exists(folder_->lines_of(i))) continue;
        OutputFile output(folder_->lines_of(i));
        stream_records(files[i], [&](std::string_view lines) { output.write(lines); });
        output.sync();
        output.publish();
      }
    });
  }

  void find_missing() {
    for (size_t i = 0; i < shards_.size(); ++i) {
      try {
        finished(i, count_shard(arguments_, folder_->shard(i)));
        ++progress_.shards_kept;
      } catch (const ConfigError&) {  // missing or incomplete
        missing_.push_back(i);
      }
    }
  }

  void run_workers() {
    const size_t count = std::min(static_cast<size_t>(most_workers()), missing_.size());
    std::vector<std::jthread> workers;
    std::unique_lock lock(mutex_);
    running_ = count;
    for (size_t i = 0; i < count; ++i) workers.emplace_back([this, i] { work(i); });
    while (running_ > 0) {
      changed_.wait_for(lock, kReportEvery);
      const BuildProgress progress = progress_;
      lock.unlock();
      try {
        report_(progress);
      } catch (...) {
        stop_ = true;
        throw;  // the workers finish their current shards
      }
      lock.lock();
    }
    if (!errors_.empty()) std::rethrow_exception(errors_.begin()->second);  // the error of the first failed shard
    report_(progress_);  // fast workers may have finished before the first report
  }

  void work(size_t worker) {
    ShardTools own;
    while (!stop_) {
      const size_t next = next_++;
      if (next >= missing_.size()) break;
      const size_t number = missing_[next];
      try {
        if (worker > 0 && own.tokenizer == nullptr) own = make_tools(arguments_);
        const ShardTools& tools = worker > 0 ? own : tools_;
        const ShardCounts counts =
            build_shard(arguments_, inputs_[shards_[number].input], shards_[number], tools, folder_->shard(number));
        const std::lock_guard lock(mutex_);
        finished(number, counts);
      } catch (...) {
        stop_ = true;
        const std::lock_guard lock(mutex_);
        errors_.emplace(number, std::current_exception());
      }
      changed_.notify_one();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  void finished(size_t number, const ShardCounts& counts) {
    ++progress_.shards_done;
    progress_.bytes_done += shards_[number].end - shards_[number].begin;
    progress_.documents += counts.documents;
    progress_.tokens += counts.tokens;
  }

  const BuildArguments& arguments_;
  const std::function<void(const BuildProgress&)>& report_;
  ShardTools tools_;  // used by the first worker
  std::deque<BuildInput> inputs_;
  std::vector<BuildShard> shards_;
  std::unique_ptr<WorkFolder> folder_;
  std::vector<size_t> missing_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  BuildProgress progress_;                                                  // guarded by mutex_ while workers run
  std::map<size_t, std::exception_ptr> errors_ CONCORD_GUARDED_BY(mutex_);  // by shard
  size_t running_ CONCORD_GUARDED_BY(mutex_) = 0;
};

void check_output_name(const BuildArguments& arguments) {
  const bool has_media = !arguments.media.processor.empty(), is_lines = arguments.output.ends_with(".jsonl");
  if (has_media && !arguments.sft) throw ConfigError("--images needs --sft: only conversations have images");
  if (has_media ? !is_lines && !arguments.output.ends_with(".safetensors") : arguments.sft == is_lines) return;
  throw ConfigError(fmt::format("--output is {}; {}", arguments.output,
                                has_media       ? "with --images it must be the name of a folder for .safetensors files"
                                : arguments.sft ? "with --sft it must be a file name that ends in .jsonl"
                                                : "it must be a prefix for .bin and .idx (only --sft writes .jsonl)"));
}

void check(const BuildArguments& arguments) {
  if (arguments.inputs.empty()) throw ConfigError("no input; give --input FILE.txt or FILE.jsonl");
  if (arguments.output.empty()) throw ConfigError("no output; give --output PREFIX");
  if (arguments.workers < 0)
    throw ConfigError(fmt::format("--workers is {}; must be >= 1, or 0 for one per core", arguments.workers));
  if (arguments.shard_bytes < 1)
    throw ConfigError(fmt::format("--shard_bytes is {}; must be >= 1", arguments.shard_bytes));
  if (arguments.media_shard_bytes < 1)
    throw ConfigError(fmt::format("--max_shard_bytes is {}; must be >= 1", arguments.media_shard_bytes));
  check_output_name(arguments);
  // A build that was killed after its last rename has left its folder: it continues, to remove it. Before that, a file
  // with the output's name belongs to the user.
  const bool goes_on = fs::exists(arguments.output + kWorkFolder + kPublishing);
  OutputRules rules{.overwrite = arguments.overwrite || goes_on, .inputs = input_files(arguments), .in_live_run = true};
  if (arguments.tokenizer != "byte") rules.inputs.push_back(arguments.tokenizer);
  if (!arguments.chat_template.empty()) rules.inputs.push_back(arguments.chat_template);
  if (arguments.media.processor.empty()) {
    check_data_output(arguments.output, rules);
  } else {
    check_media_output(arguments.output, rules);
    check_tokenizer_folder(arguments.output, rules);
  }
  check_replaced_folder("--output", arguments.output + kWorkFolder, rules);
}

}  // namespace

void check_data_output(const std::string& output, const OutputRules& rules) {
  if (output.ends_with(".jsonl")) {
    check_output_file("--output", output, rules);
  } else {
    for (const char* ending : {".bin", ".idx"}) check_output_file("--output", output + ending, rules);
  }
  check_tokenizer_folder(output, rules);
}

BuildProgress build_data(const BuildArguments& arguments, const std::function<void(const BuildProgress&)>& report) {
  check(arguments);
  return Build(arguments, report).run();
}

std::string progress_line(const BuildProgress& progress, double seconds) {
  constexpr double kMiB = 1 << 20;
  const double done = static_cast<double>(progress.bytes_done) / kMiB, all = static_cast<double>(progress.bytes) / kMiB;
  std::string line = fmt::format("{}/{} shards, {:.1f} of {:.1f} MiB, {:.2f} M tokens", progress.shards_done,
                                 progress.shards, done, all, static_cast<double>(progress.tokens) / 1e6);
  if (progress.shards_done <= progress.shards_kept || seconds <= 0)
    return line;  // the speed covers only shards of this run
  const double share =
      static_cast<double>(progress.shards_done - progress.shards_kept) / static_cast<double>(progress.shards_done);
  const double speed = done * share / seconds;
  return line + fmt::format(", {:.1f} MiB/s, {:.0f} s left", speed, (all - done) / speed);
}

}  // namespace concord
