// This rank's part of a model, from a Hugging Face folder or config.
//
// Example, given const ModelArgs& args, ParallelContext& context, const at::Tensor& hidden, const MicroBatch& batch:
//   VirtualModels model = AutoModel::from_pretrained("Qwen2.5-0.5B", args, context);
//   for (size_t i = 0; i < model.size(); ++i) model[i].forward(hidden, batch);
//   model.save_pretrained("my-model", {.source = "Qwen2.5-0.5B"});  // with the tokenizer of that folder
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/write/save_job.h"
#include "core/models/adapters/lora_init.h"
#include "core/models/model_chunk.h"

namespace concord {

// This rank's chunks of a model, in the order in which a micro-batch runs through them; one chunk unless the pipeline
// is virtual. Owns: the chunks. The context has to outlive it. Threads: same as ModelChunk.
class VirtualModels {
 public:
  // A stage of a network of the caller's own (the protected constructor of ModelChunk).
  using MakeChunk = std::function<std::unique_ptr<ModelChunk>(const ModelConfig&, const ModelArgs&, const StageLayers&,
                                                              ParallelContext&)>;

  // Parameters have memory and no values yet. Throws ConfigError as ModelChunk does, and for stages that do not fit the
  // layout. With |make_chunk| the stages are those it makes.
  VirtualModels(const ModelConfig& config, const ModelArgs& args, ParallelContext& context,
                const MakeChunk& make_chunk = {});

  const ModelConfig& config() const { return config_; }
  const ModelArgs& args() const { return args_; }  // with the stages filled in
  size_t size() const { return chunks_.size(); }
  ModelChunk& operator[](size_t index) { return *chunks_[index]; }
  // Number of chunk |index| among the stages of the whole model.
  int64_t stage(size_t index) const { return stages_[index]; }
  std::vector<Parameter*> parameters();  // parameters of all chunks

  // Writes the weights as a folder that transformers and from_pretrained load: save_hf_weights of all parameters, with
  // the config.json that the model was made from unless |options| have another, and the type of the weights in it.
  // With an adapter it is the adapter that is written, as peft does. Every rank of the job calls it; waits and throws
  // as that does.
  void save_pretrained(const std::filesystem::path& folder, HfSaveOptions options = {});
  // Like save_pretrained(), but returns a job that saves in the background while the model trains.
  std::unique_ptr<SaveJob> start_save(const std::filesystem::path& folder, HfSaveOptions options,
                                      SaveJob::Source source, std::shared_ptr<const GlobalSavePlan> previous = nullptr);

  // Initialises a new adapter according to its init_lora_weights. Every rank calls it.
  void begin_adapter();

  // FP8 state of the layers (fp8_layers.h): saved through HfSaveOptions::more, for the same |writers|, and loaded from
  // the folder of a checkpoint. Empty in a model without FP8.
  std::optional<SavedTensors> saved_fp8(const std::optional<RankRange>& writers = {});
  void load_fp8(const std::string& folder);

  // Keeps the tensors of |folder| that the model does not use, for saves, which write them unchanged. If |folder| has a
  // model with images, saves have its names and its config.
  void carry_tensors(const std::string& folder);

  // Loads the values that save_pretrained has written to |folder|. Throws as load_hf_weights does; |share_reads| as its
  // |sharing|.
  void load_saved(const std::filesystem::path& folder, bool share_reads = false);

 private:
  // Returns the parameters that save_pretrained writes, by their names in files: all of them, or those that are trained
  // with an adapter. |with_values|: with current values; otherwise they may be unset.
  std::vector<Parameter> saved_parameters(bool with_values = true);
  // Returns |options| with the config file that describes the weights: config.json or adapter_config.json.
  HfSaveOptions with_config(HfSaveOptions options) const;
  bool has_start(const Parameter& parameter) const;  // whether files store |parameter| with its initial value

  ParallelContext* context_;
  ModelConfig config_;
  ModelArgs args_;
  std::vector<int64_t> stages_;
  std::vector<std::unique_ptr<ModelChunk>> chunks_;
  std::vector<Parameter> carried_;       // tensors that saves write in addition
  const TextPart* text_part_ = nullptr;  // the names of saved files; null: the model's own
  LoraInit start_;                       // initial LoRA values that were taken from the weights
};

struct AutoModel {
  // Freshly initialised from args.seed.
  static VirtualModels from_config(const ModelConfig& config, const ModelArgs& args, ParallelContext& context);
  // Loads the weights of |folder|; each rank reads its own slices only. On the host, weights that are stored in the
  // needed form stay mapped from the files until they are used (map_files of hf_weights.h). The adapter comes from
  // args.adapter_folder, or is initialised from args.seed. args.merged_adapters are merged into the base weights first,
  // which are then quantised to args.quantization_bit. Every rank calls it. Throws ConfigError as read_model_config and
  // load_hf_weights do.
  static VirtualModels from_pretrained(const std::filesystem::path& folder, const ModelArgs& args,
                                       ParallelContext& context);
};

}  // namespace concord
