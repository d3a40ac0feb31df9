// NF4 weights (QLoRA, Dettmers 2023): each element is one of 16 quantiles of the normal distribution times the absmax
// of its block of 64. The absmax are double-quantised: minus their mean, each is one of 256 numbers (a "dynamic map" of
// sign, exponent and fraction) times the absmax of a block of 256 of them. Tables, roundings and the order of
// operations are those of bitsandbytes, so that a weight has the same values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

inline constexpr int64_t kNf4Block = 64;
inline constexpr int64_t kAbsmaxBlock = 256;

// The quantised blocks of |weight| [rows, columns] on the host; columns is a multiple of 64, of any type that operators
// compute in.
struct Nf4Blocks {
  at::Tensor codes;   // uint8 [rows, columns / 2], the first element of a pair in the upper 4 bits
  at::Tensor absmax;  // fp32 [rows, columns / 64]
};
Nf4Blocks nf4_quantise(const at::Tensor& weight);

// All absmax of a weight, in order, on the host.
struct QuantisedAbsmax {
  at::Tensor codes;   // uint8, shape of |absmax|
  at::Tensor scales;  // fp32 [blocks of 256]
  double mean;        // in fp32
};
QuantisedAbsmax quantise_absmax(const at::Tensor& absmax);
// Returns the 256 numbers of the codes, ascending.
at::Tensor absmax_map();

// |codes| uint8 [rows, columns / 2], |absmax| [rows, columns / 64] -> [rows, columns] in the type of |like|, computed
// in fp32 or fp64. On any device.
at::Tensor nf4_dequantise(const at::Tensor& codes, const at::Tensor& absmax, const at::Tensor& like);

}  // namespace concord
