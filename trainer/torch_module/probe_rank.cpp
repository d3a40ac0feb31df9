#include "trainer/torch_module/probe_rank.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/config_error.h"
#include "core/checkpoint/tensor_files.h"
#include "core/mesh/initialize.h"
#include "core/models/parameter_plan.h"
#include "core/models/token_slices.h"
#include "trainer/probe.h"
#include "trainer/torch_module/dtype_named.h"

namespace concord {
namespace {

// ------------------------------------------------------------------------------------------------------------- batch

struct Batch {
  MicroBatch batch = {};
  bool flat = false;  // the file has [T], for packed sequences
};

// Reads images and videos, in the form of transformers' processors.
void read_media(const safetensors::Reader& file, MicroBatch* batch) {
  std::vector<at::Tensor> pixels;
  const auto read = [&](const char* name, const char* grid_name, MediaGrids* grids) {
    if (file.find(name) == nullptr) return;
    pixels.push_back(read_tensor(file, name));
    const at::Tensor all = read_tensor(file, grid_name).to(at::kLong).contiguous();
    if (all.dim() != 2 || all.size(1) != 3) {
      throw ConfigError(fmt::format("{}: {} must have three numbers for each image or video", file.path(), grid_name));
    }
    const int64_t* grid = all.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < all.size(0); ++i, grid += 3) grids->push_back({grid[0], grid[1], grid[2]});
  };
  read("pixel_values", "image_grid_thw", &batch->media.images);
  read("pixel_values_videos", "video_grid_thw", &batch->media.videos);
  if (pixels.empty()) return;
  batch->pixel_values = at::cat(pixels);
  if (file.find("second_per_grid_ts") == nullptr) return;
  const at::Tensor seconds = read_tensor(file, "second_per_grid_ts").to(at::kDouble).contiguous();
  batch->media.seconds_per_group.assign(seconds.const_data_ptr<double>(),
                                        seconds.const_data_ptr<double>() + seconds.numel());
}

Batch read_batch(const std::string& path) {
  if (path.empty()) return {};
  const safetensors::Reader file(path);
  const auto tensor = [&](const char* name) {
    const at::Tensor value = read_tensor(file, name);
    if (!c10::isIntegralType(value.scalar_type(), /*includeBool=*/false)) {
      throw ConfigError(
          fmt::format("{}: {} has dtype {}; must be an integer type", path, name, c10::toString(value.scalar_type())));
    }
    return value.to(at::kLong);
  };
  Batch result;
  MicroBatch& batch = result.batch;
  if (file.find("cu_seqlens") != nullptr) {
    const at::Tensor ends = tensor("cu_seqlens").flatten();
    batch.cu_seqlens.assign(ends.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>() + ends.numel());
  }
  batch.input_ids = tensor("input_ids");
  batch.labels = tensor("labels");
  if (file.find("position_ids") != nullptr) batch.position_ids = tensor("position_ids");
  result.flat = batch.input_ids.dim() == 1;
  if (result.flat) {
    for (at::Tensor* each : {&batch.input_ids, &batch.labels, &batch.position_ids}) {
      if (each->defined()) *each = each->unsqueeze(0);
    }
  }
  read_media(file, &batch);
  check_batch(batch, /*with_labels=*/true);
  batch.labels = labels_that_follow(batch.labels, batch.cu_seqlens);
  return result;
}

// --------------------------------------------------------------------------------------------------------------- run

ModelConfig config_of(const ProbeArguments& given) {
  return read_model_config(given.model.empty() ? given.model_config : given.model);
}

std::optional<AdapterConfig> adapter_of(const ProbeArguments& given, const ModelConfig& config) {
  if (given.adapter.empty()) return std::nullopt;
  return adapter_for(config, read_adapter_config(given.adapter));
}

ModelArgs model_args_of(const ProbeArguments& given, const ModelConfig& config, const MicroBatch& batch,
                        const ParallelContext& context) {
  ModelArgs args{.options = given.model_options, .seed = given.sizes.seed};
  args.vision_tower = batch.pixel_values.defined();
  if (!given.dtype.empty()) args.dtype = dtype_named(given.dtype);
  args.adapter = adapter_of(given, config);
  args.adapter_folder = given.adapter;
  if (args.adapter) args.merged_adapters = args.adapter->merged_adapters;
  if (!given.layout.empty()) {
    args.stages = parse_layer_layout(given.layout, config.num_hidden_layers, context.layout().pp(),
                                     given.model_options.mtp.num_layers);
  }
  return args;
}

void print_result(const ProbeArguments& given, const ProbeResult& result) {
  const bool computed = result.contains("loss");
  const double loss = computed ? result.at("loss").to(at::kDouble).item<double>() : 0;
  if (given.json) {
    nlohmann::ordered_json document{{"out", given.out}, {"tensors", result.size()}};
    if (computed) document["loss"] = loss;
    fmt::print("{}\n", document.dump());
    return;
  }
  if (computed) fmt::print("loss {:.7g}\n", loss);
  fmt::print("{} tensors in {}\n", result.size(), given.out);
}

}  // namespace

void check_probe(const ProbeArguments& given, int64_t world) {
  if (!given.dtype.empty()) dtype_named(given.dtype);
  const ModelConfig config = config_of(given);
  const RankLayout layout = layout_of(given.sizes, world);
  const StageLayers whole{.embedding = true, .layers = config.num_hidden_layers, .loss = true};
  plan_parameters(config, whole, {.tp = layout.tp(), .ep = layout.ep(), .etp = layout.etp()});
  adapter_of(given, config);
  recompute_plan(given.model_options.recompute, config.num_hidden_layers);
  read_batch(given.batch);
}

void probe_rank(const ProbeArguments& given) {
  ParallelContext& context = initialize(given.sizes);
  {
    const ModelConfig config = config_of(given);
    const Batch batch = read_batch(given.batch);
    const ModelArgs args = model_args_of(given, config, batch.batch, context);
    VirtualModels models = given.model.empty() ? AutoModel::from_config(config, args, context)
                                               : AutoModel::from_pretrained(given.model, args, context);
    ProbeResult result = probe(models, batch.batch, given.options, context);
    if (context.rank() == 0) {
      for (auto& [name, tensor] : result) {
        const bool of_tokens = name == "logits" || name == "per_token_loss" || name.starts_with("activation.");
        if (batch.flat && of_tokens) tensor = tensor.squeeze(0);
      }
      write_tensors(given.out, result);
      print_result(given, result);
    }
  }
  finalize();
}

}  // namespace concord
