// Checksums of the bits of flat tensors, to compare their replicas on several ranks.
//
// A tensor is read as 64-bit words in a row-major table with kChecksumColumns columns, padded with zeros. The words of
// each column are added modulo 2^64 on the tensor's device: exact, in any order. On the host each sum is mixed with its
// column index by a bijection (MurmurHash3's finalizer), and the results are added. One flipped bit changes one sum,
// and so exactly one of the added numbers: it is always detected, in any type. Swapped words of different columns are
// detected too; changes that preserve the sums of all columns are not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/data_parallel/checksum_rows.h"

namespace concord {

// Returns one checksum for each of |tensors|, which are contiguous, of any type, on one device, and start at a multiple
// of 8 bytes. Each is read once, and no memory of its size is allocated. Waits: for the device. Threads: any.
std::vector<int64_t> checksums(std::span<const at::Tensor> tensors);

}  // namespace concord
