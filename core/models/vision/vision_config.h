// The vision tower of a model with images, from its config.json (vision_config): sizes, and how its features enter the
// text. Needs no libtorch. Pure values; threads: any.
#pragma once

#include <cstdint>
#include <vector>

#include "core/models/vision/media_positions.h"

namespace concord {

class ConfigReader;
struct ModelConfig;

// Kinds of towers. All have patches of several frames as rows, and a two-dimensional rope.
//   qwen3    LayerNorm, a learned table of positions, fc1, gelu, fc2; features of some blocks are added to text layers
//   qwen2_5  RMSNorm, gate, up, down; attention inside windows except in some blocks
//   qwen2    LayerNorm, fc1, quick gelu, fc2
enum class TowerKind { qwen3, qwen2_5, qwen2 };

// Values for keys that the file does not have, as in transformers.
struct VisionDefaults {
  TowerKind kind;
  FrameTimes times;
  int64_t image_token;
  int64_t video_token;
  std::vector<int64_t> mrope_section;  // of the text model
  bool mrope_interleaved;
  std::vector<int64_t> deepstack = {};
};

// Named as in config.json if it has a name there.
struct VisionConfig {
  bool in_use = false;  // whether the tower is computed; otherwise its tensors are saved as they were read
  TowerKind kind = TowerKind::qwen3;
  int64_t depth = 0;  // blocks; 0: the model has no tower that can be computed
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_heads = 0;
  int64_t in_channels = 0;
  int64_t patch_size = 0;
  int64_t temporal_patch_size = 0;
  int64_t num_position_embeddings = 0;    // learned; 0: none
  int64_t window_size = 0;                // in pixels; 0: attention spans a frame
  std::vector<int64_t> full_blocks = {};  // blocks without windows
  std::vector<int64_t> deepstack = {};    // text layer i adds the features after block deepstack[i]
  MediaTokens tokens = {};                // includes spatial_merge_size

  int64_t head_dim() const { return hidden_size / num_heads; }
  int64_t pixels() const { return in_channels * temporal_patch_size * patch_size * patch_size; }  // of a patch
  int64_t merged_size() const { return hidden_size * tokens.merge * tokens.merge; }
  int64_t window_side() const { return window_size / tokens.merge / patch_size; }  // in merged tokens
};

// Reads the tower of |whole|, whose text model is |text|. Throws ConfigError, with the key, its value and what is
// allowed, for sizes that do not fit each other or the text model.
VisionConfig read_vision_config(const ConfigReader& whole, const VisionDefaults& defaults, const ModelConfig& text);

// Returns |config| with its tower in use. Throws ConfigError if it has none that can be computed.
ModelConfig with_vision_tower(ModelConfig config);

}  // namespace concord
