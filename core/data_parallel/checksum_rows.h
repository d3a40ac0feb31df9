// The checksum loop over host memory, without libtorch's headers.
#pragma once

#include <cstdint>

namespace concord {

// Columns of the table of words as which a tensor is read (checksum.h).
inline constexpr int64_t kChecksumColumns = 1024;

// Adds |rows| rows of kChecksumColumns words to |sums|, modulo 2^64.
void add_rows(const int64_t* table, int64_t rows, int64_t* sums);

}  // namespace concord
