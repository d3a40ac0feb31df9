#include "trainer/data/media/media_set.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndex = "index.json";
constexpr const char* kVersionKey = "concord_media_index";
constexpr int64_t kVersion = 1;
constexpr uint64_t kMaxIndexBytes = 64 << 20;

int64_t count_at(const json& object, const char* key) {
  const json& value = object.at(key);
  if (value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX}) return value.get<int64_t>();
  throw ConfigError(fmt::format("\"{}\" must be a whole number >= 0", key));
}

MediaShard parse_shard(const json& value) {
  MediaShard shard{.file = value.at("file").get<std::string>(),
                   .bytes = count_at(value, "bytes"),
                   .samples = count_at(value, "samples"),
                   .tokens = count_at(value, "tokens"),
                   .media = count_at(value, "media")};
  if (shard.file.empty() || fs::path(shard.file).filename() != shard.file || shard.file.starts_with(".")) {
    throw ConfigError(fmt::format("the shard {} is not the name of a file in its folder", quoted(shard.file)));
  }
  return shard;
}

}  // namespace

std::string media_shard_name(size_t number) { return fmt::format("shard-{:05}.safetensors", number); }

MediaShard describe_shard(const MediaFile& file) {
  return {.file = fs::path(file.path()).filename().string(),
          .bytes = static_cast<int64_t>(fs::file_size(file.path())),
          .samples = file.samples(),
          .tokens = file.tokens(),
          .media = std::ssize(file.media())};
}

std::string to_text(const std::vector<MediaShard>& shards) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  int64_t samples = 0, tokens = 0, media = 0;
  for (const MediaShard& each : shards) {
    samples += each.samples;
    tokens += each.tokens;
    media += each.media;
    list.push_back({{"file", each.file},
                    {"bytes", each.bytes},
                    {"samples", each.samples},
                    {"tokens", each.tokens},
                    {"media", each.media}});
  }
  const nlohmann::ordered_json index = {
      {kVersionKey, kVersion}, {"samples", samples}, {"tokens", tokens}, {"media", media}, {"shards", list}};
  return index.dump(1) + "\n";
}

std::vector<MediaShard> parse_media_index(const std::string& text, const std::string& name) {
  const json index = parse_json(text, name);
  try {
    if (!index.is_object() || count_at(index, kVersionKey) != kVersion) {
      throw ConfigError(fmt::format("\"{}\" must be {}", kVersionKey, kVersion));
    }
    std::vector<MediaShard> shards;
    for (const json& each : index.at("shards")) shards.push_back(parse_shard(each));
    if (shards.empty()) throw ConfigError("lists no shards");
    return shards;
  } catch (const json::exception& error) {
    throw ConfigError(fmt::format("{}: is not an index of a data set with images: {}", name, json_reason(error)));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: is not an index of a data set with images: {}", name, error.what()));
  }
}

bool is_media_set(const std::string& path) {
  std::error_code ignored;
  const std::string index = (fs::path(path) / kIndex).string();
  if (!fs::is_directory(path, ignored) || !fs::is_regular_file(index, ignored)) return false;
  std::array<std::byte, 256> begin;
  const size_t count = InputFile(index).read_at(0, begin);
  return std::string_view(reinterpret_cast<const char*>(begin.data()), count).find(kVersionKey) != std::string::npos;
}

bool is_media_file(const std::string& path) { return safetensors::Reader(path).find("sample_starts") != nullptr; }

MediaSet::MediaSet(const std::string& path) {
  if (!is_media_set(path)) {
    add(path);
    return;
  }
  const std::string index = (fs::path(path) / kIndex).string();
  for (const MediaShard& wanted : parse_media_index(InputFile(index).read(kMaxIndexBytes, "an index"), index)) {
    const std::string file = (fs::path(path) / wanted.file).string();
    if (const InputFile opened(file, "copy all shards of the data set");
        std::cmp_not_equal(opened.size(), wanted.bytes)) {
      throw ConfigError(fmt::format("{} has {} bytes, but {} in {} was written with {}; copy it again", file,
                                    opened.size(), wanted.file, index, wanted.bytes));
    }
    add(file);
    if (describe_shard(shards_.back()) == wanted) continue;
    throw ConfigError(
        fmt::format("{}: does not have the samples that {} lists; copy the whole data set again", file, index));
  }
}

void MediaSet::add(const std::string& file) {
  const MediaFile& added = shards_.emplace_back(file);
  firsts_.push_back(firsts_.back() + added.samples());
  if (added.format() == format() && added.has_pairs() == has_pairs()) return;
  throw ConfigError(fmt::format("{}: its images were converted differently from those of {}: {}, not {}", file,
                                shards_.front().path(), to_text(added.format()), to_text(format())));
}

bool MediaSet::has_media() const {
  return std::ranges::any_of(shards_, [](const MediaFile& file) { return !file.media().empty(); });
}

std::string changed_source(const MediaSet& set) {
  for (const MediaFile& file : set.shards()) {
    for (int64_t sample = 0; sample < file.samples(); ++sample) {
      const std::string_view sources = file.view(sample).sources;
      for (size_t begin = 0; begin < sources.size();) {
        const size_t end = sources.find('\n', begin);
        const std::string_view line = sources.substr(begin, end - begin);
        begin = end + 1;
        const size_t path = line.find(' ', line.find(' ') + 1) + 1;
        struct stat state{};
        if (line.empty() || path >= line.size() || ::stat(std::string(line.substr(path)).c_str(), &state) != 0)
          continue;
        const int64_t time = int64_t{state.st_mtim.tv_sec} * 1'000'000'000 + state.st_mtim.tv_nsec;
        if (line.substr(0, path) != fmt::format("{} {} ", state.st_size, time)) return std::string(line.substr(path));
      }
    }
  }
  return "";
}

size_t MediaSet::number_of(int64_t sample) const {
  return static_cast<size_t>(std::ranges::upper_bound(firsts_, sample) - firsts_.begin() - 1);
}

}  // namespace concord
