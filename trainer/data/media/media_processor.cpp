#include "trainer/data/media/media_processor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/text/tokenizer_process.h"

namespace concord {
namespace {

using nlohmann::json;

constexpr const char* kMediaScript =
#include "media_script.inc"
    ;

std::string text_of_files(const std::string& folder, const std::vector<const char*>& names) {
  std::string text;
  std::error_code ignored;
  for (const char* name : names) {
    const std::filesystem::path file = std::filesystem::path(folder) / name;
    if (std::filesystem::is_regular_file(file, ignored)) text += MappedFile(file.string()).text();
  }
  return text;
}

// Reads one of the media in the head of a reply.
Medium parse_medium(const json& value, bool is_video, const MediaFormat& format) {
  const json& grid = value.at("grid");
  Medium medium{.grid = {grid.at(0).get<int64_t>(), grid.at(1).get<int64_t>(), grid.at(2).get<int64_t>()},
                .is_video = is_video,
                .seconds = value.at("seconds").get<double>()};
  constexpr int64_t kMaxSide = std::numeric_limits<int16_t>::max();
  const auto is_side = [&](int64_t size, int64_t multiple) {
    return size > 0 && size <= kMaxSide && size % multiple == 0;
  };
  if (is_side(medium.grid.frames, 1) && is_side(medium.grid.rows, format.merge_size) &&
      is_side(medium.grid.columns, format.merge_size)) {
    return medium;
  }
  throw ConfigError(fmt::format("made {} x {} x {} patches of a medium; rows and columns must be multiples of {}",
                                medium.grid.frames, medium.grid.rows, medium.grid.columns, format.merge_size));
}

// A reply is the size of a head, the head, and the patches.
MediaProcessor::Converted parse_reply(std::string reply, const std::vector<RecordMedium>& wanted,
                                      const MediaFormat& format) {
  uint32_t size = 0;
  if (reply.size() < sizeof size) throw ConfigError("sent a reply that ends early");
  std::memcpy(&size, reply.data(), sizeof size);
  if (size > reply.size() - sizeof size) throw ConfigError("sent a reply that ends early");
  const json head = parse_json(std::string_view(reply).substr(sizeof size, size), "reply");
  MediaProcessor::Converted made;
  int64_t bytes = 0;
  for (const RecordMedium& each : wanted) {
    const json& value = head.at("media").at(made.media.media.size());
    const Medium& medium = made.media.media.emplace_back(parse_medium(value, each.is_video, format));
    bytes += medium.grid.patches() * format.patch_bytes(medium.is_video);
    const std::string source = value.at("source").get<std::string>();
    made.media.sources += (source.find('\n') == std::string::npos ? source : "") + "\n";
  }
  made.texts = head.at("texts").dump();
  made.media.patches = std::move(reply.erase(0, sizeof size + size));
  if (std::cmp_equal(made.media.patches.size(), bytes)) return made;
  throw ConfigError(fmt::format("sent {} bytes of patches instead of {}", made.media.patches.size(), bytes));
}

}  // namespace

bool has_media_processor(const std::string& folder) {
  return !text_of_files(folder, {"preprocessor_config.json", "processor_config.json"}).empty();
}

std::string media_processor_text(const std::string& folder) {
  return text_of_files(folder, {"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"});
}

MediaProcessor::MediaProcessor(const MediaSettings& settings)
    : settings_(settings),
      process_(kMediaScript, {settings.processor}, "the images of " + settings.processor, python_memory_limit()) {
  const std::string name = fmt::format("the image process ({}, pid {})", process_.python(), process_.pid());
  pipe_ = std::make_unique<TokenizerPipe>(process_.take_input(), process_.take_output(), name, python_patience());
  format_ = parse_media_format(pipe_->read_first_line(), name);
}

MediaProcessor::Converted MediaProcessor::convert(const std::vector<RecordMedium>& media, const std::string& folder) {
  std::vector<std::string> items;
  for (const RecordMedium& each : media) {
    items.push_back(fmt::format("{{\"{}\":{}}}", each.is_video ? "video" : "image", each.value));
  }
  const json settings = {{"folder", settings_.media_dir.empty() ? folder : settings_.media_dir},
                         {"image_max_pixels", settings_.image_max_pixels},
                         {"image_min_pixels", settings_.image_min_pixels},
                         {"video_max_pixels", settings_.video_max_pixels},
                         {"video_min_pixels", settings_.video_min_pixels},
                         {"video_fps", settings_.video_fps},
                         {"video_maxlen", settings_.video_maxlen}};
  const std::string request = fmt::format("{{\"media\":[{}],\"settings\":{}}}", fmt::join(items, ","), settings.dump());
  std::string reply = pipe_->bytes_of("media", request);
  const auto refuse = [&](const std::string& why) {
    return ConfigError(fmt::format("the processor in {} {}", settings_.processor, why));
  };
  try {
    return parse_reply(std::move(reply), media, format_);
  } catch (const json::exception& error) {
    throw refuse("sent an invalid reply: " + json_reason(error));
  } catch (const ConfigError& error) {
    throw refuse(error.what());
  }
}

std::string with_media_texts(std::string sample, const std::string& texts) {
  sample.pop_back();  // }
  return sample + ",\"media\":" + texts + "}";
}

}  // namespace concord
