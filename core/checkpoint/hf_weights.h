// The weights of Hugging Face folders in and out of a job's parameters, whatever its layout.
//
// Both use the parameters' ShardSpec: names, shapes, pieces and splits. Nothing here depends on a model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/write/save_chunks.h"
#include "core/mesh/machines.h"
#include "core/parallel/parameter.h"
#include "core/safetensors/header.h"
#include "core/safetensors/index.h"

namespace concord {

class ParallelContext;

inline constexpr int64_t kWindowBytes = 8 << 20;  // default of HfLoadOptions::window_bytes

struct HfLoadOptions {
  std::string stem = safetensors::kModelStem;  // what the names of the files begin with
  // The tensors of the whole model, of all its stages (global_tensors of hf_plan.h): what else the folder has is an
  // error. Empty: not checked.
  std::span<const std::string> model_tensors = {};
  // What the names of tensors begin with that the folder may have and the model does not use.
  std::span<const std::string> unused = {};
  // Rows and columns of the blocks that have a scale each, where weights may be 8-bit floats (block_scales.h); empty:
  // they may not.
  std::span<const int64_t> weight_block_size = {};
  // A tied model: its files may have an lm_head.weight, which means nothing.
  bool tied_embeddings = false;
  // A value that is stored in a file as it is needed here (on the host, in the same type, contiguous, without padding)
  // becomes a private mapping of the file instead of a copy: nothing is read before it is used, and writing to it
  // copies the page. The file must not become shorter or be overwritten in place meanwhile (safetensors/reader.h).
  bool map_files = false;
  // The job whose ranks all load together, at the same time: of what the ranks of a data-parallel group (dp_cp; edp for
  // experts) need alike, each reads a share and sends it to the others (parallel_load.h), and where one rank fails, all
  // throw. Nothing is mapped then. Null: each rank reads all that it needs.
  ParallelContext* sharing = nullptr;
  // Bytes of a file that a thread maps or stages at a time; a single row of a block may be longer.
  int64_t window_bytes = kWindowBytes;
};

// Fills the parameters' values from |folder| (core/safetensors/index.h: one file or several), each rank separately: it
// reads its own elements only, through a mapping, and converts from F64, F32, F16, BF16 or scaled 8-bit floats to the
// parameter's type. Padding becomes 0. Values that are copied stay where they are; with map_files others move. Besides
// the parameters it holds at most a few mapped or staged windows of |window_bytes|, one per thread. Extra tensors
// called *.rotary_emb.inv_freq, which older versions of transformers wrote, are ignored. Throws ConfigError with the
// file, the tensor and both values: a missing or extra tensor, another shape, a type that is not a float; and what
// safetensors::Weights throws. Parameters are unchanged if it does. Returns the bytes of tensors that this rank read
// (not those of mapped values, nor scales). Waits: on the host, until the values are in place; with |sharing| for all
// ranks. Threads: one at a time for a parameter.
int64_t load_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
                        const HfLoadOptions& options = {});

// More tensors of a saved folder, in files of their own: the optimizer's state.
struct SavedTensors {
  // What this rank writes of them: |values|, flat, on the host or the device, at their global addresses.
  struct Part {
    std::vector<ShardRun> runs;
    at::Tensor values;
  };

  std::string stem;                               // what the names of the files begin with
  std::vector<safetensors::TensorShape> tensors;  // of this rank's stage, the same on all ranks of it
  std::vector<Part> parts;  // over all ranks every element of every tensor once; on the first stage that has it
};

struct HfSaveOptions {
  std::string stem = safetensors::kModelStem;  // what the names of the weights' files begin with
  bool with_config = true;                     // a config.json
  int64_t max_shard_bytes = 5'000'000'000;     // as transformers has it
  std::string config_json = {};                // the text of config.json; empty: the one of |source|
  // A Hugging Face folder whose generation config and tokenizer files are copied; empty: none.
  std::string source = {};
  // More files, name and text: a tokenizer that did not come from |source|. Omitted if |source| has one.
  std::vector<std::pair<std::string, std::string>> tokenizer_files = {};
  bool overwrite = false;  // replaces |folder| where it exists and is not empty
  std::vector<SavedTensors> more = {};
  // Files that the first of the ranks that write the folder writes last, name and text.
  std::vector<std::pair<std::string, std::string>> more_files = {};
  bool manifest = false;  // manifest.json with checksums of everything (core/checkpoint/manifest.h), after all others
  // Bytes of host memory per rank for copies of what is being written, in saves that go on while the job trains
  // (save_job.h); 0: the larger of 1 GiB and two times the largest shard.
  int64_t memory_limit = 0;
  // On the rank that made |folder|, when it is there, on all machines; on another thread in such saves.
  std::function<void()> after_publish = {};
  std::optional<uint32_t> stale_digest = std::nullopt;  // SaveJob::digest of a save that this one must differ from
  // The ranks that write |folder| together, this one among them: those of its machine, where each machine has a folder
  // of its own (core/mesh/machines.h). None: all ranks.
  std::optional<RankRange> writers = std::nullopt;
  // Bytes that are copied, written or sent to another machine at a time; at least those of one element.
  int64_t chunk_bytes = kChunkBytes;
};

// Writes a folder that transformers loads. All ranks of the job call it with their parameters, the same |folder| (on a
// file system that all of them see; or those of a machine do, with |writers|) and the same options. Tensors have the
// types of the parameters; padding is not written, nor is a tied output layer. The bytes do not depend on the layout.
// Each rank writes what it alone has, and its share of what several have, from its place, with several threads; from a
// device through |chunk_bytes| per thread. Everything is written into a folder next to it, "<folder>.tmp-<nonce>",
// which takes its name at the end when all ranks have succeeded: |folder| is always the old one or the new one
// (save_folder.h). On an error all ranks throw the same message and the temporary folder is removed; only a rank 0 that
// dies leaves it behind, and the next save next to it removes it. Throws ConfigError if |folder| exists and may not be
// replaced, ranks do not see the same folder, or have the same tensor in different shapes; std::runtime_error for what
// the file system says. Waits: for all ranks at each step, in collectives of the world group, and throws as these do if
// one is lost or does not join.
void save_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, ParallelContext& context,
                     const HfSaveOptions& options = {});

}  // namespace concord
