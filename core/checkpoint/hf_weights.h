// Loads and saves the weights of Hugging Face folders, for any layout of a job's parameters. Uses the parameters'
// ShardSpec (names, shapes, pieces and splits), and is independent of the model.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint/write/save_chunks.h"
#include "core/mesh/machines.h"
#include "core/parallel/parameter.h"
#include "core/safetensors/header.h"
#include "core/safetensors/index.h"

namespace concord {

class ParallelContext;

// How a text model's names begin, and how they do in the files of a model with images that it is a part of.
struct TextPart {
  std::string_view here, there;
  std::string in_files(std::string_view name) const {
    return name.starts_with(here) ? std::string(there).append(name.substr(here.size())) : std::string(name);
  }
};
// The last is how transformers before 4.52 named towers next to a text model with its own names.
inline constexpr TextPart kTextParts[] = {
    {"", "language_model."}, {"model.", "model.language_model."}, {"model.visual.", "visual."}};

inline constexpr int64_t kWindowBytes = 8 << 20;  // default of HfLoadOptions::window_bytes

struct HfLoadOptions {
  std::string stem = safetensors::kModelStem;  // prefix of the file names
  // The tensors of the whole model, of all its stages (global_tensors of hf_plan.h): other tensors in the folder are an
  // error. Empty: not checked.
  std::span<const std::string> model_tensors = {};
  // Prefixes of tensors that the folder may contain and the model does not use.
  std::span<const std::string> unused = {};
  // Rows and columns of the blocks with a scale each, if weights may be FP8 (block_scales.h); empty: they may not.
  std::span<const int64_t> weight_block_size = {};
  // Tied embeddings: an lm_head.weight in the files is ignored.
  bool tied_embeddings = false;
  // Map values that are stored in the file in the needed form (on the host, in the same type, contiguous, without
  // padding) privately instead of copying them: nothing is read before it is used, and writing copies the page. The
  // file must not be truncated or overwritten in place meanwhile (safetensors/reader.h).
  bool map_files = false;
  // The job whose ranks load together: ranks of a data-parallel group (dp_cp; edp for experts) that need the same
  // tensors read a share each and all-gather them (parallel_load.h). If one rank fails, all throw. Nothing is mapped.
  // Null: each rank reads everything it needs.
  ParallelContext* sharing = nullptr;
  // Bytes of a file that a thread maps or stages at a time; a single row of a block may be longer.
  int64_t window_bytes = kWindowBytes;
};

// Fills the parameters' values from |folder| (core/safetensors/index.h: one file or several), each rank separately: it
// reads only its own elements, through a mapping, and converts from F64, F32, F16, BF16 or scaled FP8 to the
// parameter's type. Padding becomes 0. Copied values stay in their memory; with map_files others move. In addition to
// the parameters it holds at most one mapped or staged window of |window_bytes| per thread. Ignores tensors called
// *.rotary_emb.inv_freq, which older versions of transformers wrote. Throws ConfigError with the file, the tensor and
// both values for a missing or extra tensor, a different shape, or a type that is not a float; and the errors of
// safetensors::Weights. The parameters are then unchanged. Returns the bytes of tensors that this rank read (without
// mapped values and scales). Waits: on the host, until the values are in place; with |sharing| for all ranks. Threads:
// one at a time per parameter.
int64_t load_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
                        const HfLoadOptions& options = {});

// Additional tensors of a saved folder, in separate files: the optimizer's state.
struct SavedTensors {
  // The part that this rank writes: |values|, flat, on the host or the device, at their global addresses.
  struct Part {
    std::vector<ShardRun> runs;
    at::Tensor values;
  };

  std::string stem;                               // prefix of the file names
  std::vector<safetensors::TensorShape> tensors;  // tensors of this rank's stage, identical on all its ranks
  std::vector<Part> parts;  // together they cover every element once, on the first stage that has it
};

struct HfSaveOptions {
  std::string stem = safetensors::kModelStem;  // prefix of the weights' file names
  bool with_config = true;                     // write a config.json
  int64_t max_shard_bytes = 5'000'000'000;     // transformers' default
  std::string config_json = {};                // content of config.json; empty: that of |source|
  // A Hugging Face folder whose generation config and tokenizer files are copied; empty: none.
  std::string source = {};
  // Additional files (name, text): a tokenizer that did not come from |source|. Ignored if |source| has one.
  std::vector<std::pair<std::string, std::string>> tokenizer_files = {};
  bool overwrite = false;  // replace |folder| if it exists and is not empty
  std::vector<SavedTensors> more = {};
  // Files (name, text) that the first of the writing ranks writes last.
  std::vector<std::pair<std::string, std::string>> more_files = {};
  bool manifest = false;  // write manifest.json with all checksums (core/checkpoint/manifest.h), as the last file
  // Bytes of host memory per rank for copies, in saves that run in parallel with training (save_job.h); 0: the larger
  // of 1 GiB and twice the largest shard.
  int64_t memory_limit = 0;
  // Called on the rank that created |folder| once it is published on all machines; in background saves on another
  // thread.
  std::function<void()> after_publish = {};
  std::optional<uint32_t> stale_digest = std::nullopt;  // SaveJob::digest of a save that this one must differ from
  // The ranks that write |folder| together, including this one: those of its machine, if each machine has its own
  // folder (core/mesh/machines.h). nullopt: all ranks.
  std::optional<RankRange> writers = std::nullopt;
  // Every machine has its own |folder|, with the data of its ranks and a copy of the data of the previous machine's
  // (core/checkpoint/write/replication.h); excludes |writers|.
  bool replicated = false;
  // Bytes that are copied, written or sent to another machine at a time; at least one element.
  int64_t chunk_bytes = kChunkBytes;
};

// Writes a folder that transformers loads. All ranks of the job call it with their parameters, the same |folder| (on a
// file system that all of them share; or, with |writers|, those of a machine) and the same options. Tensors have the
// types of the parameters; padding and a tied output layer are not written. The bytes do not depend on the layout. Each
// rank writes the elements that it alone holds, and its share of replicated ones, with several threads; from a device
// through |chunk_bytes| per thread. Everything is written to a temporary folder "<folder>.tmp-<nonce>", which is
// renamed when all ranks have succeeded: |folder| is always the old one or the new one (save_folder.h). On an error all
// ranks throw the same message and the temporary folder is removed; it is left behind only if rank 0 dies, and the next
// save removes it. Throws ConfigError if |folder| exists and may not be replaced, ranks do not share the folder, or
// have the same tensor in different shapes; std::runtime_error for file system errors. Waits: for all ranks at each
// step, in collectives of the world group, which throw if a rank is lost or does not join.
void save_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, ParallelContext& context,
                     const HfSaveOptions& options = {});

}  // namespace concord
