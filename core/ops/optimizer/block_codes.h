// Blocks of 8-bit codes (Dettmers et al., "8-bit optimizers via block-wise quantization", 2022): 256 values share a
// scale, the largest magnitude among them, and a value is the code of the nearest fraction of it
// (core/base/code_map.h). Codes and scales are bit for bit those of torchao's OptimState8bit. Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/code_map.h"

namespace concord {

// Returns the numbers of |map| on |device|, fp32 [2, 256]: the fractions; then the 255 thresholds and infinity. The
// code of a fraction is the number of thresholds that are not above it. Created once.
const at::Tensor& code_table(CodeMap map, c10::Device device);

// Codes the flat fp32 |values|, a multiple of 256 of them: sets |codes| (uint8, of the same size) and |scales| (fp32,
// one per block). On the current stream; |values| is unchanged.
void encode_blocks(const at::Tensor& values, const at::Tensor& table, const at::Tensor& codes,
                   const at::Tensor& scales);
// Like encode_blocks() with the map's table, and on the host by loops that are much faster.
void encode_blocks(const at::Tensor& values, CodeMap map, const at::Tensor& codes, const at::Tensor& scales);
// Sets |values| to those that codes and scales stand for.
void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, const at::Tensor& table,
                   const at::Tensor& values);
void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, CodeMap map, const at::Tensor& values);

}  // namespace concord
