#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "trainer/data/media/media_settings.h"

namespace concord {
namespace {

constexpr int64_t kMaxPatch = 256, kMaxMerge = 16;

bool is_valid(const MediaFormat& format) {
  const auto within = [](int64_t size, int64_t most) { return size >= 1 && size <= most; };
  const auto is_finite = [](double value) { return std::isfinite(value); };
  return within(format.patch_size, kMaxPatch) && within(format.temporal_patch_size, kMaxMerge) &&
         within(format.merge_size, kMaxMerge) && format.image_token >= 0 && format.video_token >= -1 &&
         std::ranges::all_of(format.mean, is_finite) &&
         std::ranges::all_of(format.std, [&](double value) { return is_finite(value) && value > 0; });
}

}  // namespace

std::string to_text(const MediaFormat& format) {
  const nlohmann::json value = {{"patch_size", format.patch_size},
                                {"temporal_patch_size", format.temporal_patch_size},
                                {"merge_size", format.merge_size},
                                {"image_token", format.image_token},
                                {"video_token", format.video_token},
                                {"mean", format.mean},
                                {"std", format.std}};
  return value.dump();
}

MediaFormat parse_media_format(const std::string& text, const std::string& name) {
  try {
    const nlohmann::json value = parse_json(text, name);
    MediaFormat format{.patch_size = value.at("patch_size").get<int64_t>(),
                       .temporal_patch_size = value.at("temporal_patch_size").get<int64_t>(),
                       .merge_size = value.at("merge_size").get<int64_t>(),
                       .image_token = value.at("image_token").get<int64_t>(),
                       .video_token = value.value("video_token", int64_t{-1})};
    value.at("mean").get_to(format.mean);
    value.at("std").get_to(format.std);
    if (is_valid(format)) return format;
    throw ConfigError(
        fmt::format("{}: {} has values that are out of range; patch_size must be from 1 to {}, temporal_patch_size and "
                    "merge_size from 1 to {}, image_token >= 0, video_token >= -1, and std > 0",
                    name, text, kMaxPatch, kMaxMerge));
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{}: the format of its images is invalid: {}", name, json_reason(error)));
  }
}

}  // namespace concord
