// The loop of the checksums over memory on the host, without libtorch's headers.
#pragma once

#include <cstdint>

namespace concord {

// Of the table of words as which a tensor is read (checksum.h).
inline constexpr int64_t kChecksumColumns = 1024;

// Adds |rows| rows of kChecksumColumns words to |sums|, modulo 2^64.
void add_rows(const int64_t* table, int64_t rows, int64_t* sums);

}  // namespace concord
