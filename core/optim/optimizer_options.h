// Options of core/optim/optimizer.h; needs no libtorch.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"

namespace concord {

enum class OptimizerType { adam, lion, muon, sgd };  // adam is AdamW
template <>
inline constexpr std::string_view kEnumNames<OptimizerType>[] = {"adam", "lion", "muon", "sgd"};

enum class MuonScaleMode { shape_scaling, spectral, unit_rms_norm };
template <>
inline constexpr std::string_view kEnumNames<MuonScaleMode>[] = {"shape_scaling", "spectral", "unit_rms_norm"};

// The type in which a tensor of the state is kept between updates. block8: 8-bit codes with a scale per block
// (core/ops/optimizer/block_codes.h); fp8 and fp16: e4m3 and half precision with a scale per block
// (core/optim/narrow_state.h).
enum class StateType { fp32, bf16, fp16, block8, fp8 };
template <>
inline constexpr std::string_view kEnumNames<StateType>[] = {"fp32", "bf16", "fp16", "8bit", "fp8"};
// Whether a tensor of |type| has a scale per block.
constexpr bool has_scales(StateType type) { return type != StateType::fp32 && type != StateType::bf16; }

// How the main weights of 16-bit parameters are kept: in fp32, or without an fp32 copy (core/optim/main_weights.h).
// bf16_stochastic_round is torchao's name, kahan_sum optimi's.
enum class MainParamsType { fp32, remainder, kahan_sum, bf16_stochastic_round };
template <>
inline constexpr std::string_view kEnumNames<MainParamsType>[] = {"fp32", "remainder", "kahan_sum",
                                                                  "bf16_stochastic_round"};

// Where state in host memory is updated: on the host, or on the device, through which it is streamed
// (core/optim/state_stream.h).
enum class OffloadUpdate { host, device };
template <>
inline constexpr std::string_view kEnumNames<OffloadUpdate>[] = {"host", "device"};

// Types of the state (core/optim/state_precision.h), named as in Megatron's arguments.
struct StatePrecision {
  StateType exp_avg_dtype = StateType::fp32;     // first moments: AdamW's and Lion's, momentum of SGD and Muon
  StateType exp_avg_sq_dtype = StateType::fp32;  // second moments
  MainParamsType main_params_dtype = MainParamsType::fp32;
  bool has_blocks() const { return has_scales(exp_avg_dtype) || has_scales(exp_avg_sq_dtype); }
  bool operator==(const StatePrecision&) const = default;
};

// Named as in HF's, Megatron's and ROLL's arguments.
struct OptimizerOptions {
  OptimizerType optimizer = OptimizerType::adam;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double sgd_momentum = 0.9;
  double muon_momentum = 0.95;
  bool muon_use_nesterov = true;
  int64_t muon_num_ns_steps = 5;
  MuonScaleMode muon_scale_mode = MuonScaleMode::shape_scaling;
  double muon_extra_scale_factor = 1;
  StatePrecision precision = {};
  double ema_decay = 0;        // decay of an EMA of the weights; 0: none
  int64_t ema_start_step = 0;  // number of updates during which the EMA equals the weights
  double max_grad_norm = 1.0;  // 0: no clipping
  bool log_num_zeros_in_grad = false;
  bool optimizer_cpu_offload = false;     // state in the host's memory
  double optimizer_offload_fraction = 1;  // of the elements
  OffloadUpdate optimizer_offload_update = OffloadUpdate::host;
  double host_memory_limit = 0;  // GiB that the ranks of a machine may use together; 0: what is available
  int64_t offload_piece_elements = int64_t{1} << 20;  // copied at a time: copies of one piece overlap another's step
  int64_t offload_chunk_elements = int64_t{1} << 22;  // likewise, if the device updates: at most 64 MiB
  int64_t muon_batch_elements = int64_t{1} << 26;     // total size of the whole matrices of a batch

  // Most elements of a segment on the host.
  int64_t host_piece() const {
    return optimizer_offload_update == OffloadUpdate::device ? offload_chunk_elements : offload_piece_elements;
  }
  bool operator==(const OptimizerOptions&) const = default;
};

}  // namespace concord
