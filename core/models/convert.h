// The weights of a checkpoint or a Hugging Face folder as a new Hugging Face folder, in another type, in files of
// another size, or with an adapter added to them. In pieces of some MiB, so memory does not depend on the model. Needs
// no libtorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/safetensors/dtype.h"

namespace concord {

struct ConvertOptions {
  std::string from;
  std::string to;
  std::string adapter = {};  // folder of a LoRA adapter (core/models/adapters/adapter_delta.h) to merge; empty: none
  bool average = false;      // checkpoints: converts the EMA of the weights (ema_decay) instead
  // Output type of F64, F32, BF16 and F16 tensors: F32, BF16 or F16; other tensors are copied. None: all are copied.
  std::optional<safetensors::DType> dtype = {};
  int64_t max_shard_bytes = 5'000'000'000;  // default of transformers
};

struct Converted {
  int64_t files = 0;  // of weights
  int64_t tensors = 0;
  int64_t changed = 0;  // by the adapter
  uint64_t bytes = 0;   // written
};

// Bytes written so far and in all. Called by one thread at a time.
using ConvertProgress = std::function<void(uint64_t done, uint64_t bytes)>;

// Writes |to|: the weights (core/safetensors/encode.h rounds), config.json with the new type, and the tokenizer and
// generation files of |from| (auxiliary_files.h). The optimizer state, metadata and checksums of a checkpoint are left
// out. |to| appears when all of it is on disk (save_folder.h), or not at all. As in peft, the adapter's change is
// computed in float32 and the sum is rounded. Throws ConfigError if |from| has no weights, the adapter does not fit it,
// or |to| exists and is not empty or lies in |from|; std::runtime_error if the disk is too small or the file system
// fails. Threads: any; starts several.
Converted convert_weights(const ConvertOptions& options, const ConvertProgress& progress = nullptr);

// Returns the name of F32, BF16 or F16 in transformers and in arguments, e.g. "bfloat16".
const char* torch_name(safetensors::DType dtype);

}  // namespace concord
