// Options of how a model is run: the part of ModelArgs (core/models/model_args.h) that needs no libtorch.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/models/moe_args.h"
#include "core/models/mtp_args.h"
#include "core/models/precision/fp8_args.h"
#include "core/parallel/offload/activation_offload_args.h"
#include "core/parallel/recompute_args.h"

namespace concord {

// How keys meet queries under context parallelism: in a ring, all gathered, or by exchanging tokens for heads
// (core/parallel/context_attention.h). With p2p, layers with a sliding window or dropout of attention gather.
enum class CpCommType { p2p, all_gather, a2a };
template <>
inline constexpr std::string_view kEnumNames<CpCommType>[] = {"p2p", "all_gather", "a2a"};

// Named as in Megatron and ROLL.
struct ModelOptions {
  bool sequence_parallel = false;  // has no effect if tensor_model_parallel_size is 1
  CpCommType cp_comm_type = CpCommType::p2p;
  RecomputeArgs recompute = {};
  ActivationOffloadArgs offload = {};
  MoeArgs moe = {};
  MtpArgs mtp = {};
  Fp8Args fp8 = {};
  int64_t make_vocab_size_divisible_by = 128;
  // Label smoothing and z-loss of the training loss, see cross_entropy.h; evaluation uses neither.
  double label_smoothing_factor = 0;
  double z_loss_coeff = 0;
  // Tokens of a micro-batch whose logits exist at a time, see core/models/layers/loss_chunks.h; 0: all of them; -1:
  // free_loss_chunk, or all of them if chunks would compute some logits twice.
  int64_t loss_chunk_size = -1;
  int64_t free_loss_chunk = 16384;  // tokens; large enough for GEMMs at full speed
  // MLPs in tiles of the sequence, see core/models/layers/mlp.h; named as in Axolotl.
  bool tiled_mlp = false;
  int64_t tiled_mlp_num_shards = 0;  // tiles; 0: the tokens of a row divided by the hidden size
  int64_t mlp_tiles() const { return tiled_mlp && tiled_mlp_num_shards > 1 ? tiled_mlp_num_shards : 1; }
  // In training, see core/models/layers/layer_dropout.h.
  double attention_dropout = -1;  // -1: the value of the model's config.json
  double hidden_dropout = 0;
  double neftune_noise_alpha = 0;  // noise on the embedding's output
  bool operator==(const ModelOptions&) const = default;
};

}  // namespace concord
