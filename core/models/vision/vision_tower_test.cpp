// A model with images as a whole: its folder, and the layouts that it refuses. tests/parity/images.py compares its
// numbers with transformers.
#include "core/models/vision/vision_tower.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_plan.h"
#include "core/checkpoint/tensor_files.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/models/parameter_plan.h"
#include "core/models/token_slices.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using tests::TemporaryFolder;

constexpr const char* kConfig = R"({"model_type": "qwen3_vl", "image_token_id": 38, "video_token_id": 39,
    "architectures": ["Qwen3VLForConditionalGeneration"], "dtype": "float32",
    "text_config": {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 0]}},
    "vision_config": {"depth": 2, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "patch_size": 2,
                      "out_hidden_size": 16, "num_position_embeddings": 9, "deepstack_visual_indexes": [0]}})";

// The name in a folder of a model with images, of a tensor of its parts.
std::string in_folder(const std::string& name, bool is_old) {
  if (name.starts_with(kTower)) return is_old ? name.substr(std::string("model.").size()) : name;
  return !is_old && name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
}

// Writes a folder with random weights, and returns them.
std::map<std::string, at::Tensor> write_folder(const std::filesystem::path& folder, bool is_old) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << kConfig;
  const ModelConfig config = with_vision_tower(read_model_config(folder));
  const StageLayers whole{.embedding = true, .layers = 2, .loss = true};
  std::map<std::string, at::Tensor> tensors;
  for (const ParameterPlan& plan : plan_parameters(config, whole, {})) {
    for (const GlobalTensor& tensor : global_tensors(plan.spec)) {
      tensors[in_folder(tensor.name, is_old)] = at::randn(tensor.shape);
    }
  }
  write_tensors((folder / "model.safetensors").string(), tensors);
  return tensors;
}

MicroBatch batch_with_image() {
  MicroBatch batch{.input_ids = at::arange(8, at::kLong).view({1, 8}), .labels = at::full({1, 8}, 3, at::kLong)};
  batch.input_ids.narrow(1, 1, 2).fill_(38);
  batch.pixel_values = at::rand({8, 24});
  batch.media.images = {{1, 2, 4}};
  return batch;
}

class VisionModel : public ::testing::Test {
 protected:
  VisionModel() : context_(initialize({})) {}
  ~VisionModel() override { finalize(); }
  ParallelContext& context_;
};

TEST_F(VisionModel, IsSavedUnderTheNamesOfItsFolder) {
  for (const bool is_old : {false, true}) {
    for (const bool in_use : {false, true}) {
      const TemporaryFolder temporary;
      const std::filesystem::path from = temporary.path() + "/from", to = temporary.path() + "/to";
      const auto wanted = write_folder(from, is_old);
      VirtualModels models = AutoModel::from_pretrained(from, {.vision_tower = in_use}, context_);
      MicroBatch batch = batch_with_image();
      if (!in_use) batch.pixel_values = at::Tensor();
      models[0].forward({}, batch).value.sum().backward();
      for (Parameter* parameter : models.parameters()) {
        if (!parameter->spec.name.starts_with(kTower)) continue;
        EXPECT_TRUE(in_use && parameter->value.grad().defined()) << parameter->spec.name;
        const at::NoGradGuard no_grad;
        parameter->value.add_(1);
      }
      models.save_pretrained(to, {});
      const safetensors::Weights saved(to.string());
      EXPECT_EQ(saved.tensors().size(), wanted.size());
      for (const auto& [name, tensor] : wanted) {
        ASSERT_NE(saved.find(name), nullptr) << name;
        const at::Tensor found = read_tensor(*saved.find(name)->file, name);
        const bool is_trained = in_use && name.find("visual.") != std::string::npos;
        EXPECT_TRUE(at::equal(found, is_trained ? tensor + 1 : tensor)) << name;
      }
      EXPECT_EQ(read_model_config(to).whole_text, read_model_config(from).whole_text);
    }
  }
}

TEST_F(VisionModel, RefusesBatchesThatDoNotFit) {
  const TemporaryFolder temporary;
  write_folder(temporary.path() + "/model", false);
  const auto forward = [&](bool in_use, const MicroBatch& batch) {
    VirtualModels models = AutoModel::from_pretrained(temporary.path() + "/model", {.vision_tower = in_use}, context_);
    models[0].forward({}, batch);
  };
  MicroBatch batch = batch_with_image();
  EXPECT_THAT([&] { forward(false, batch); }, ThrowsMessage<ConfigError>(HasSubstr("no vision tower in use")));
  batch.media.images[0].columns = 3;
  EXPECT_THAT([&] { forward(true, batch); }, ThrowsMessage<ConfigError>(HasSubstr("multiples of 2")));
  batch = batch_with_image();
  batch.pixel_values = at::rand({8, 23});
  EXPECT_THAT([&] { forward(true, batch); }, ThrowsMessage<ConfigError>(HasSubstr("expected floats [8, 24]")));
  EXPECT_THAT(
      [&] {
        with_vision_tower(parse_model_config(R"({"model_type": "qwen2", "vocab_size": 40, "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})",
                                             "x"));
      },
      ThrowsMessage<ConfigError>(HasSubstr("has no vision tower")));
}

// Text layers that add features of the tower are on its stage.
TEST_F(VisionModel, RefusesAFirstStageWithFewerLayersThanDeepstackNeeds) {
  const ModelConfig config = with_vision_tower(parse_model_config(kConfig, "x"));
  const StageLayers first{.embedding = true, .layers = 0};
  EXPECT_THAT([&] { ModelChunk(config, {.vision_tower = true}, first, context_); },
              ThrowsMessage<ConfigError>(HasSubstr("the first pipeline stage has 0 of the layers")));
}

// Positions given on three axes are those that the grids have.
TEST_F(VisionModel, TakesPositionsOnThreeAxes) {
  const TemporaryFolder temporary;
  write_folder(temporary.path() + "/model", false);
  VirtualModels models = AutoModel::from_pretrained(temporary.path() + "/model", {.vision_tower = true}, context_);
  MicroBatch batch = batch_with_image();
  const at::Tensor counted = models[0].forward({}, batch).value;
  batch.position_ids = media_positions(batch, models.config().vision.tokens, at::kCPU).own.transpose(1, 2);
  EXPECT_TRUE(at::equal(models[0].forward({}, batch).value, counted));
  batch.position_ids = batch.position_ids.clone();
  batch.position_ids.select(0, 1).select(1, 3).add_(2);  // the row of one token
  EXPECT_FALSE(at::equal(models[0].forward({}, batch).value, counted));
}

}  // namespace
}  // namespace concord
