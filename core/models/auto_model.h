// A model from a Hugging Face folder or config, as this rank has it.
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

// This rank's chunks of a model, in the order in which a micro-batch runs through them, one chunk unless the pipeline
// is virtual. Owns them; the context has to outlive it. Threads: those of ModelChunk.
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
  std::vector<Parameter*> parameters();  // of all chunks

  // Writes the weights as a folder that transformers and from_pretrained load: save_hf_weights of all parameters, with
  // the config.json that the model was made from unless |options| have another, and the type of the weights in it.
  // With an adapter it is the adapter that is written, as peft does. Every rank of the job calls it; waits and throws
  // as that does.
  void save_pretrained(const std::filesystem::path& folder, HfSaveOptions options = {});
  // The same, as a save that goes on while the model trains.
  std::unique_ptr<SaveJob> start_save(const std::filesystem::path& folder, HfSaveOptions options,
                                      SaveJob::Source source, std::shared_ptr<const GlobalSavePlan> previous = nullptr);
  // The same, in a folder of each machine (replicated_save.h). Waits: until it is complete.
  std::shared_ptr<const GlobalSavePlan> save_replicated(const std::filesystem::path& folder, HfSaveOptions options,
                                                        std::shared_ptr<const GlobalSavePlan> previous = nullptr);

  // Sets the pairs of a new adapter, as its init_lora_weights says. Every rank calls it.
  void begin_adapter();

  // What 8-bit layers remember (fp8_layers.h), for HfSaveOptions::more, with |writers| as of it, and from the folder of
  // a checkpoint; nothing in a model without them.
  std::optional<SavedTensors> saved_fp8(const std::optional<RankRange>& writers = {});
  void load_fp8(const std::string& folder);

  // The values that save_pretrained has written to |folder|. Throws as load_hf_weights does; |share_reads| as its
  // |sharing|.
  void load_saved(const std::filesystem::path& folder, bool share_reads = false);

 private:
  // What save_pretrained writes, by the names in files: all parameters, or those that are trained with an adapter.
  // |with_values|: those of now; else there may be room for them only.
  std::vector<Parameter> saved_parameters(bool with_values = true);
  HfSaveOptions with_config(HfSaveOptions options) const;  // and what else says what the weights are
  bool has_start(const Parameter& parameter) const;        // whether it is in files with what it began as

  ParallelContext* context_;
  ModelConfig config_;
  ModelArgs args_;
  std::vector<int64_t> stages_;
  std::vector<std::unique_ptr<ModelChunk>> chunks_;
  LoraInit start_;  // of pairs that begin as a part of the weights
};

struct AutoModel {
  // Freshly initialised from args.seed.
  static VirtualModels from_config(const ModelConfig& config, const ModelArgs& args, ParallelContext& context);
  // With the weights of |folder|, of which this rank reads its own slices only; on the host, those that are stored
  // there as they are needed stay in the files until they are used (map_files of hf_weights.h). An adapter comes from
  // args.adapter_folder, or is initialised from args.seed, beside weights that args.merged_adapters were added to and
  // that are then held as args.quantization_bit says. Every rank calls it.
  // Throws ConfigError as read_model_config and load_hf_weights do.
  static VirtualModels from_pretrained(const std::filesystem::path& folder, const ModelArgs& args,
                                       ParallelContext& context);
};

}  // namespace concord
