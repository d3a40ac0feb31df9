#include "core/data_parallel/checksum_rows.h"

namespace concord {

void add_rows(const int64_t* table, int64_t rows, int64_t* sums) {
  auto* sum = reinterpret_cast<uint64_t*>(sums);  // unsigned: overflow is defined
  const auto* row = reinterpret_cast<const uint64_t*>(table);
  constexpr int64_t kAtOnce = 4;
  int64_t done = 0;
  for (; done + kAtOnce <= rows; done += kAtOnce, row += kAtOnce * kChecksumColumns) {
    for (int64_t i = 0; i < kChecksumColumns; ++i) {
      sum[i] += row[i] + row[i + kChecksumColumns] + row[i + 2 * kChecksumColumns] + row[i + 3 * kChecksumColumns];
    }
  }
  for (; done < rows; ++done, row += kChecksumColumns) {
    for (int64_t i = 0; i < kChecksumColumns; ++i) sum[i] += row[i];
  }
}

}  // namespace concord
