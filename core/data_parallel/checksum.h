// Checksums of the bits of flat tensors, to compare copies of them on several ranks.
//
// A tensor is read as 64-bit words, row by row of a table with kChecksumColumns columns; what is missing at the end is
// 0. The words of each column are added modulo 2^64, where the tensor is: exact, and in any order. On the host each sum
// is mixed with the number of its column by a bijection (MurmurHash3's finalizer), and the results are added. One
// flipped bit changes one sum, and so exactly one of the added numbers: it is always found, in any type. Two words of
// different columns that are swapped are found too; what leaves the sums of all columns as they were is not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/data_parallel/checksum_rows.h"

namespace concord {

// One for each of |tensors|, which are contiguous, of any type, on one device, and begin at a multiple of 8 bytes. Each
// is read once, and nothing of its size is allocated. Waits: for the device. Threads: any.
std::vector<int64_t> checksums(std::span<const at::Tensor> tensors);

}  // namespace concord
