#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/threads.h"
#include "core/safetensors/writer.h"
#include "trainer/data/build/build_media.h"
#include "trainer/data/build/output_file.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/media/media_set.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void write_whole(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(text);
  file.sync();
  file.publish();
}

// Opens the pieces that have samples, one after the other.
class OpenPiece {
 public:
  const MediaFile& open(const std::string& path) {
    if (!file_ || file_->path() != path) file_ = std::make_unique<MediaFile>(path);
    return *file_;
  }

 private:
  std::unique_ptr<MediaFile> file_;
};

}  // namespace

MediaShardPlan plan_media_shards(const std::vector<std::vector<int64_t>>& bytes, int64_t most, int64_t group) {
  MediaShardPlan plan;
  int64_t room = 0;  // in the last shard
  for (size_t piece = 0; piece < bytes.size(); ++piece) {
    for (int64_t i = 0; i < std::ssize(bytes[piece]); i += group) {
      int64_t needed = 0;
      for (int64_t j = i; j < i + group; ++j) needed += bytes[piece][static_cast<size_t>(j)];
      if (plan.empty() || needed > room) {
        plan.emplace_back();
        room = most;
      }
      room -= needed;
      std::vector<PieceSamples>& shard = plan.back();
      const bool continues = !shard.empty() && shard.back().piece == static_cast<int64_t>(piece);
      if (!continues) shard.push_back({.piece = static_cast<int64_t>(piece), .begin = i, .end = i});
      shard.back().end += group;
    }
  }
  return plan;
}

void check_media_output(const std::string& output, const OutputRules& rules) {
  check_replaced_folder("--output", output, rules);
  if (!rules.in_live_run) check_outside_live_runs("--output", output);
  std::error_code error;
  const fs::file_status status = fs::symlink_status(output, error);
  if (!fs::exists(status)) return;
  if (!rules.overwrite) {
    throw ConfigError(fmt::format("{} already exists; choose another --output, or pass --overwrite", output));
  }
  bool is_ours = fs::is_directory(status) && is_media_set(output);
  for (fs::directory_iterator entry(output, error), end; is_ours && !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    is_ours = entry->is_regular_file() &&
              (name == "index.json" || (name.starts_with("shard-") && name.ends_with(".safetensors")));
  }
  if (is_ours) return;
  throw ConfigError(
      fmt::format("{} is not a data set with images, which --overwrite replaces; choose another --output", output));
}

MediaJoin::MediaJoin(std::string folder, std::vector<std::string> names)
    : folder_(std::move(folder)), names_(std::move(names)) {}

std::string MediaJoin::shard(size_t number) const { return folder_ + "/data/" + media_shard_name(number); }

bool MediaJoin::has_begun() const { return fs::exists(folder_ + "/shards.json"); }

MediaShardPlan MediaJoin::make_plan(int64_t most_bytes) const {
  std::vector<std::vector<int64_t>> bytes(names_.size());
  std::map<bool, std::string> kinds;  // a piece with pairs, and one without
  for (size_t i = 0; i < names_.size(); ++i) {
    const MediaFile piece(names_[i] + ".safetensors");
    for (int64_t sample = 0; sample < piece.samples(); ++sample) bytes[i].push_back(piece.bytes(sample));
    if (piece.samples() > 0) kinds.emplace(piece.has_pairs(), names_[i]);
  }
  if (kinds.size() > 1) {
    throw ConfigError("there are pairs to learn preferences from, and others; put them into separate data sets");
  }
  return plan_media_shards(bytes, most_bytes, kinds.contains(true) ? 2 : 1);
}

MediaShardPlan MediaJoin::read_plan() const {
  const std::string file = folder_ + "/shards.json";
  MediaShardPlan plan;
  for (const json& shard : parse_json(MappedFile(file).text(), file)) {
    plan.emplace_back();
    for (const json& part : shard) plan.back().push_back({part.at(0), part.at(1), part.at(2)});
  }
  return plan;
}

void MediaJoin::write_shard(const std::string& path, const std::vector<PieceSamples>& pieces) const {
  OpenPiece piece;
  const auto open = [&](const PieceSamples& part) -> const MediaFile& {
    return piece.open(names_[static_cast<size_t>(part.piece)] + ".safetensors");
  };
  const MediaFile& first = open(pieces.front());
  const bool pairs = first.has_pairs();
  MediaFileBuilder file(path, first.format(), pairs);
  for (const PieceSamples& part : pieces) {
    const MediaFile& from = open(part);
    for (int64_t sample = part.begin; sample < part.end; ++sample) {
      const MediaView view = from.view(sample);
      const bool is_second_half = pairs && sample % 2 != 0;
      file.add(from.sample(sample), is_second_half ? MediaView{} : view, from.margin(sample));
      from.release(view);
    }
  }
  file.finish();
}

ShardCounts MediaJoin::run(int64_t most_bytes, int64_t workers) {
  fs::create_directories(folder_ + "/data");
  if (!has_begun()) {
    json list = json::array();
    for (const auto& shard : make_plan(most_bytes)) {
      json parts = json::array();
      for (const PieceSamples& part : shard) parts.push_back({part.piece, part.begin, part.end});
      list.push_back(parts);
    }
    write_whole(folder_ + "/shards.json", list.dump());
  }
  const MediaShardPlan plan = read_plan();
  std::mutex mutex;
  std::map<int64_t, int64_t> uses;  // per piece: the shards that need it and do not exist yet
  for (size_t i = 0; i < plan.size(); ++i) {
    for (const PieceSamples& part : plan[i]) uses[part.piece] += fs::exists(shard(i)) ? 0 : 1;
  }
  const auto remove_unused = [&](const std::vector<PieceSamples>& pieces, int64_t used) {
    const std::lock_guard lock(mutex);
    for (const PieceSamples& part : pieces) {
      if ((uses[part.piece] -= used) == 0) fs::remove(names_[static_cast<size_t>(part.piece)] + ".safetensors");
    }
  };
  std::atomic<size_t> next = 0;
  run_on_threads(std::max<int64_t>(1, std::min(workers, std::ssize(plan))), [&] {
    for (size_t i = next++; i < plan.size(); i = next++) {
      const bool exists = fs::exists(shard(i));
      if (!exists) write_shard(shard(i), plan[i]);
      remove_unused(plan[i], exists ? 0 : 1);
    }
  });
  ShardCounts counts;
  std::vector<MediaShard> shards;
  for (size_t i = 0; i < plan.size(); ++i) {
    const MediaFile file(shard(i));
    shards.push_back(describe_shard(file));
    counts.documents += file.samples() / (file.has_pairs() ? 2 : 1);
    counts.tokens += file.tokens();
  }
  write_whole(folder_ + "/data/index.json", to_text(shards));
  safetensors::sync_folder(folder_ + "/data");
  return counts;
}

void MediaJoin::publish(const std::string& output) const {
  const std::string data = folder_ + "/data";
  if (!fs::exists(data)) return;  // an earlier process has renamed it
  if (fs::exists(output)) fs::rename(output, folder_ + "/replaced");
  safetensors::rename_durably(data, output);
}

}  // namespace concord
