// Weights in 4 bits (QLoRA, Dettmers 2023): each number is one of 16 quantiles of the normal distribution (nf4) times
// the largest absolute value of its block of 64, and these are held in 8 bits: with their mean taken off, as one of 256
// numbers (a "dynamic map" of sign, exponent and fraction) times the largest absolute value of a block of 256 of them.
// Tables, roundings and the order of operations are those of bitsandbytes, so that a weight has the same values here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace concord {

inline constexpr int64_t kNf4Block = 64;
inline constexpr int64_t kAbsmaxBlock = 256;

// |weight| [rows, columns] on the host, columns a multiple of 64, of any type that operators compute in.
struct Nf4Blocks {
  at::Tensor codes;   // uint8 [rows, columns / 2], the first number of a pair in the upper 4 bits
  at::Tensor absmax;  // fp32 [rows, columns / 64]
};
Nf4Blocks nf4_quantise(const at::Tensor& weight);

// All the absmax of a weight, in its order, on the host.
struct QuantisedAbsmax {
  at::Tensor codes;   // uint8, of the shape of |absmax|
  at::Tensor scales;  // fp32 [blocks of 256]
  double mean;        // of fp32
};
QuantisedAbsmax quantise_absmax(const at::Tensor& absmax);
// The 256 numbers that its codes stand for, ascending.
at::Tensor absmax_map();

// |codes| uint8 [rows, columns / 2], |absmax| [rows, columns / 64] -> [rows, columns] of the type of |like|, computed
// in 32 bits or more. On any device.
at::Tensor nf4_dequantise(const at::Tensor& codes, const at::Tensor& absmax, const at::Tensor& like);

}  // namespace concord
