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
  bool average = false;      // of a checkpoint: the average that ema_decay kept, instead of the weights
  // F32, BF16 or F16, for all tensors of F64, F32, BF16 and F16; others stay as they are. None: all do.
  std::optional<safetensors::DType> dtype = {};
  int64_t max_shard_bytes = 5'000'000'000;  // as transformers has it
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
// generation files of |from| (core/checkpoint/auxiliary_files.h). The optimizer's state, metadata and checksums of a
// checkpoint are left out. |to| appears when all of it is on the disk (core/checkpoint/save_folder.h), or not at all.
// What an adapter adds is a float32 value, and the sum is rounded, as peft does it. Throws ConfigError where |from| has
// no weights, the adapter does not fit it, |to| exists and is not empty or lies in |from|; std::runtime_error for a
// disk that is too small and for what the file system says. Threads: uses several; call it from any.
Converted convert_weights(const ConvertOptions& options, const ConvertProgress& progress = nullptr);

// "bfloat16", as transformers and the arguments call it; of F32, BF16 and F16.
const char* torch_name(safetensors::DType dtype);

}  // namespace concord
