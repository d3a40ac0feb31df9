#include "trainer/data/text/token_cache.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/base/config_error.h"
#include "core/base/files/file_lock.h"
#include "trainer/data/build/build.h"
#include "trainer/data/build/content_hash.h"
#include "trainer/data/build/output_file.h"
#include "trainer/data/build/progress_printer.h"
#include "trainer/data/data_files.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/media/media_processor.h"
#include "trainer/data/media/media_set.h"
#include "trainer/data/text/records.h"
#include "trainer/data/text/text_reader.h"
#include "trainer/data/text/tokenizer_files.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr int kCacheFormat = 1;                     // part of an entry's name
constexpr int64_t kHashedWhole = int64_t{1} << 30;  // larger files are hashed in part
constexpr int64_t kSampleBytes = 1 << 16, kSamples = 4096, kShardSamples = 64;
constexpr const char* kMediaFolder = "/media";  // in an entry

void add_bytes(ContentHash* hash, std::string_view bytes) {
  hash->add(bytes.size());
  while (bytes.size() >= sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    hash->add(word);
    bytes.remove_prefix(sizeof word);
  }
  for (const char byte : bytes) hash->add(static_cast<uint8_t>(byte));
}

// Hashes |samples| evenly spaced parts of |text|.
void add_parts(ContentHash* hash, std::string_view text, int64_t samples) {
  const auto size = static_cast<int64_t>(text.size());
  hash->add(text.size());
  for (int64_t i = 0; i < samples; ++i) {
    add_bytes(hash, text.substr(static_cast<size_t>(i * ((size - kSampleBytes) / (samples - 1))), kSampleBytes));
  }
}

// Hashes a file; if it is too large to be read, some of its bytes, its size, and with |by_time| its modification time.
void add_file(ContentHash* hash, const std::string& path, bool by_time) {
  const MappedFile file(path);
  if (file.size() <= kHashedWhole) return add_bytes(hash, file.text());
  if (by_time) hash->add(static_cast<uint64_t>(fs::last_write_time(path).time_since_epoch().count()));
  add_parts(hash, file.text(), kSamples);
}

// Hashes some bytes of a shard of pixels: there may be a thousand of them.
void add_shard(ContentHash* hash, const std::string& path) {
  const MappedFile file(path);
  if (file.size() <= kShardSamples * kSampleBytes) return add_bytes(hash, file.text());
  add_parts(hash, file.text(), kShardSamples);
}

std::string key_of(const DataArguments& arguments, const std::vector<std::string>& files) {
  ContentHash hash;
  hash.add(kCacheFormat);
  for (const auto& [name, text] : tokenizer_files(arguments.tokenizer)) {
    add_bytes(&hash, name);
    add_bytes(&hash, text);
  }
  if (!arguments.chat_template.empty()) add_file(&hash, arguments.chat_template, false);
  if (arguments.dataset) add_bytes(&hash, arguments.dataset->text());
  if (const MediaSettings& media = arguments.media; !media.processor.empty()) {
    add_bytes(&hash, "media 1" + media_processor_text(media.processor) + media.media_dir);
    for (const int64_t number : {media.image_max_pixels, media.image_min_pixels, media.video_max_pixels,
                                 media.video_min_pixels, media.video_maxlen, int64_t{media.skip_bad_images}}) {
      hash.add(static_cast<uint64_t>(number));
    }
    hash.add(std::bit_cast<uint64_t>(media.video_fps));
  }
  for (const std::string& file : files) {
    add_bytes(&hash, fs::path(file).extension().string());  // .txt and .jsonl with the same bytes differ
    add_file(&hash, file, true);
  }
  return fmt::format("{:016x}", hash.value());
}

// Returns the first line of |text| that is not blank.
std::string first_line(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? "" : std::string(text.substr(begin, text.find('\n', begin) - begin));
}

struct FirstLines {
  std::string text;
};

std::string first_record(const std::string& file) {
  if (!is_record_file(file)) return first_line(MappedFile(file).text());
  try {
    stream_records(file, [](std::string_view lines) { throw FirstLines{first_line(lines)}; });
  } catch (const FirstLines& found) {  // the rest is not read
    return found.text;
  }
  return "";
}

bool is_corpus(const DataArguments& arguments, const std::string& file) {
  if (file.ends_with(".txt")) return true;
  const std::string line = first_record(file);
  return !line.empty() && parse_json_record(line, file + ", line 1", arguments.dataset).kind == JsonRecord::Kind::kText;
}

// Returns whether a file may have images or videos. Without the names nothing has.
bool mentions_media(const DataArguments& arguments, const std::vector<std::string>& files) {
  std::vector<std::string> names = {"\"image", "\"video"};  // images, image_url, ...
  for (std::string& name : names) {
    if (!arguments.dataset) break;
    const auto column = arguments.dataset->columns.find(name.substr(1) + "s");
    if (column != arguments.dataset->columns.end()) name = "\"" + column->second;
  }
  const auto mentions = [&](std::string_view text) {
    return std::ranges::any_of(names,
                               [&](const std::string& name) { return text.find(name) != std::string_view::npos; });
  };
  return std::ranges::any_of(files, [&](const std::string& file) {
    if (!is_record_file(file)) return mentions(MappedFile(file).text());
    bool found = false;
    stream_records(file, [&](std::string_view lines) { found |= mentions(lines); });
    return found;
  });
}

// Returns the manifest of a complete entry: its files and the hash of each.
std::string manifest_of(const std::string& entry) {
  std::vector<fs::path> files;
  for (const auto& found : fs::recursive_directory_iterator(entry)) {
    if (!found.is_directory() && found.path().filename() != "manifest") files.push_back(found.path());
  }
  std::ranges::sort(files);
  std::string text;
  for (const fs::path& file : files) {
    ContentHash hash;
    if (file.extension() == ".safetensors") {
      add_shard(&hash, file.string());
    } else {
      add_file(&hash, file.string(), false);
    }
    text += fmt::format("{} {} {:016x}\n", fs::relative(file, entry).string(), fs::file_size(file), hash.value());
  }
  return text;
}

// Returns the path of the tokens in |entry|; nullopt if it is incomplete or damaged.
std::optional<std::string> tokens_of(const std::string& entry) {
  const std::string manifest = entry + "/manifest";
  std::error_code ignored;
  if (!fs::is_regular_file(manifest, ignored)) return std::nullopt;
  try {
    if (MappedFile(manifest).text() != manifest_of(entry)) throw ConfigError("its files have changed");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tokenization cache: %s is damaged (%s); tokenizing again\n", entry.c_str(), error.what());
    return std::nullopt;
  }
  if (is_media_set(entry + kMediaFolder)) {
    const std::string changed = changed_source(MediaSet(entry + kMediaFolder));
    if (changed.empty()) return entry + kMediaFolder;
    std::fprintf(stderr, "tokenization cache: %s has changed; converting images again\n", changed.c_str());
    return std::nullopt;
  }
  return entry + (fs::exists(entry + "/data.idx") ? "/data" : "/data.jsonl");
}

std::string build_entry(const DataArguments& arguments, const std::vector<std::string>& files,
                        const std::string& entry) {
  std::error_code error;
  fs::remove(entry + "/manifest", error);  // marks the entry as incomplete
  fs::create_directories(entry, error);
  if (error) throw ConfigError(fmt::format("cannot create {}: {}", entry, error.message()));
  const bool is_text = is_corpus(arguments, files.front());
  const bool may_convert = !arguments.media.processor.empty() && !is_text;
  const MediaSettings media = may_convert && mentions_media(arguments, files) ? arguments.media : MediaSettings{};
  const std::string output = entry + (is_text ? "/data" : media.processor.empty() ? "/data.jsonl" : kMediaFolder);
  ProgressPrinter printer("tokenizing " + arguments.path);
  build_data(
      {.inputs = files,
       .dataset = arguments.dataset,
       .output = output,
       .tokenizer = arguments.tokenizer,
       .sft = !is_text,
       .media = media,
       .chat_template = arguments.chat_template,
       .overwrite = true},
      [&](const BuildProgress& now) { printer.show([&](double seconds) { return progress_line(now, seconds); }); });
  const std::string text = manifest_of(entry);  // computed before the manifest file exists
  OutputFile manifest(entry + "/manifest");
  manifest.write(text);
  manifest.sync();
  manifest.publish();
  return output;
}

}  // namespace

std::string default_token_cache() {
  const auto variable = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string given = variable("CONCORD_CACHE"); !given.empty()) return given;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/concord";
  const std::string home = variable("HOME");
  if (home.empty()) return "";
  const std::string folder = home + "/.cache/concord";
  std::error_code error;
  fs::create_directories(folder, error);
  return ::access(folder.c_str(), W_OK) == 0 ? folder : "";
}

bool uses_token_cache(const DataArguments& arguments) {
  if (arguments.cache.empty() || arguments.tokenizer.empty()) return false;
  const std::string& path = arguments.path;
  if (is_several_files(path) || is_record_file(path)) return true;
  if (arguments.tokenizer == "byte") return false;
  if (path.ends_with(".txt")) return true;
  if (!path.ends_with(".jsonl")) return false;
  const std::string line = first_line(MappedFile(path).text());
  return !line.empty() && parse_json_record(line, path + ", line 1", arguments.dataset).tokens.ids.empty();
}

std::string tokens_in_cache(const DataArguments& arguments) {
  const std::vector<std::string> files = data_files(arguments.path);
  const std::string folder = arguments.cache + "/tokens";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw ConfigError(
        fmt::format("cannot create {}: {}; set data_cache_path to a folder that can be written to, or to none", folder,
                    error.message()));
  }
  const std::string entry = folder + "/" + key_of(arguments, files);
  const auto say = [&] {
    std::fprintf(stderr, "tokenization cache: waiting for another process, which is tokenizing %s\n",
                 arguments.path.c_str());
  };
  const FileLock lock(entry + ".lock", say, "; set data_cache_path to a folder that can be written to, or to none");
  if (const std::optional<std::string> tokens = tokens_of(entry)) return *tokens;
  return build_entry(arguments, files, entry);
}

}  // namespace concord
