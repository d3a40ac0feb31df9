#include "core/models/vision/vision_config.h"

#include <fmt/core.h>

#include <cmath>

#include "core/base/config_error.h"
#include "core/models/config.h"
#include "core/models/config_reader.h"

namespace concord {
namespace {

constexpr IntegerRange kTowerSizes{1, int64_t{1} << 24};
constexpr IntegerRange kTowerSmall{1, 4096};
constexpr IntegerRange kTowerBlocks{0, int64_t{1} << 16};
constexpr IntegerRange kTokenIds{0, (int64_t{1} << 31) - 1};

void read_tower_sizes(const ConfigReader& read, VisionConfig& vision) {
  const TowerKind kind = vision.kind;
  const bool is_3 = kind == TowerKind::qwen3, is_2 = kind == TowerKind::qwen2;
  vision.depth = read.integer("depth", kTowerSmall, is_3 ? 27 : 32);
  vision.hidden_size = is_2 ? read.integer("embed_dim", kTowerSizes, 1280)  // whose hidden_size is that of the text
                            : read.integer("hidden_size", kTowerSizes, is_3 ? 1152 : 3584);
  vision.intermediate_size =
      is_2 ? static_cast<int64_t>(static_cast<double>(vision.hidden_size) * read.positive("mlp_ratio", 4))
           : read.integer("intermediate_size", kTowerSizes, is_3 ? 4304 : 3420);
  vision.num_heads = read.integer("num_heads", kTowerSmall, 16);
  vision.in_channels = read.integer("in_channels", kTowerSmall, 3);
  vision.patch_size = read.integer("patch_size", kTowerSmall, is_3 ? 16 : 14);
  vision.temporal_patch_size = read.integer("temporal_patch_size", kTowerSmall, 2);
  vision.tokens.merge = read.integer("spatial_merge_size", kTowerSmall, 2);
  if (vision.hidden_size % (4 * vision.num_heads) != 0) {
    read.refuse(
        fmt::format("hidden_size {} must be a multiple of 4 times num_heads {}: half of each head is rotated by "
                    "rows and half by columns, in pairs",
                    vision.hidden_size, vision.num_heads));
  }
}

// The blocks of |key|, which must exist.
std::vector<int64_t> read_blocks(const ConfigReader& read, const char* key, std::vector<int64_t> defaults,
                                 int64_t depth) {
  const std::vector<int64_t> blocks = read.has(key) ? read.integers(key, kTowerBlocks) : std::move(defaults);
  for (const int64_t block : blocks) {
    if (block >= depth) read.refuse(key, fmt::format("must have numbers below depth {}", depth));
  }
  return blocks;
}

void read_tower_parts(const ConfigReader& read, const VisionDefaults& defaults, VisionConfig& vision) {
  if (vision.kind == TowerKind::qwen3) {
    vision.num_position_embeddings = read.integer("num_position_embeddings", kTowerSizes, 2304);
    const auto side = std::llround(std::sqrt(static_cast<double>(vision.num_position_embeddings)));
    if (side * side != vision.num_position_embeddings) read.refuse("num_position_embeddings", "must be a square");
    vision.deepstack = read_blocks(read, "deepstack_visual_indexes", defaults.deepstack, vision.depth);
  }
  if (vision.kind == TowerKind::qwen2_5) {
    vision.window_size = read.integer("window_size", kTowerSizes, 112);
    vision.full_blocks = read_blocks(read, "fullatt_block_indexes", {7, 15, 23, 31}, vision.depth);
    vision.tokens.tokens_per_second = read.integer("tokens_per_second", kTowerSmall, 4);
    if (vision.window_side() == 0) {
      read.refuse("window_size", fmt::format("must be at least patch_size {} times spatial_merge_size {}",
                                             vision.patch_size, vision.tokens.merge));
    }
  }
}

void check_tower_activation(const ConfigReader& read, TowerKind kind) {
  const std::string wanted = kind == TowerKind::qwen3     ? "gelu_pytorch_tanh"
                             : kind == TowerKind::qwen2_5 ? "silu"
                                                          : "quick_gelu";
  if (read.text("hidden_act", wanted) != wanted) read.refuse("hidden_act", "must be " + wanted);
}

}  // namespace

VisionConfig read_vision_config(const ConfigReader& whole, const VisionDefaults& defaults, const ModelConfig& text) {
  VisionConfig vision;
  vision.kind = defaults.kind;
  vision.tokens.times = defaults.times;
  vision.tokens.image_token = whole.integer("image_token_id", kTokenIds, defaults.image_token);
  vision.tokens.video_token = whole.integer("video_token_id", kTokenIds, defaults.video_token);
  if (!whole.has("vision_config")) return {};
  const ConfigReader read = whole.object("vision_config");
  check_tower_activation(read, vision.kind);
  read_tower_sizes(read, vision);
  read_tower_parts(read, defaults, vision);
  const char* const output = vision.kind == TowerKind::qwen2 ? "hidden_size" : "out_hidden_size";
  if (read.integer(output, kTowerSizes, 3584) != text.hidden_size) {
    read.refuse(output, fmt::format("must be {}, the hidden_size of the text model", text.hidden_size));
  }
  if (static_cast<int64_t>(vision.deepstack.size()) > text.num_hidden_layers) {
    read.refuse(
        "deepstack_visual_indexes",
        fmt::format("must have at most {} numbers, one for each layer of the text model", text.num_hidden_layers));
  }
  return vision;
}

ModelConfig with_vision_tower(ModelConfig config) {
  if (config.vision.depth == 0) {
    throw ConfigError(
        fmt::format("this {} model has no vision tower that can be computed; train it on text, or choose "
                    "a folder with the vision_config of a Qwen model with images",
                    config.model_type));
  }
  config.vision.in_use = true;
  std::erase_if(config.unused_tensors, [](const std::string& each) { return each.ends_with("visual."); });
  return config;
}

}  // namespace concord
