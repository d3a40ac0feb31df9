// The assignment of samples to steps and ranks. Pure functions of a few numbers; the order does not depend on the
// layout.
//
// Global batch k of an epoch is entries k*B to (k+1)*B-1 of its order, B = micro_batch_size * accumulation * dp_size.
// Within it, micro-batch m of dp rank r is the micro_batch_size rows starting at (m*dp_size + r) * micro_batch_size. So
// micro-batches take the rows in order, within each the dp ranks one after another, and every row is taken once. (With
// dp 1, micro-batches are blocks of rows in order.)
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"

namespace concord {

// The permutation that shuffles the samples of an epoch. torch: that of accelerate's SeedableRandomSampler, so the one
// of transformers' Trainer, torch.randperm with the seed plus the epoch.
enum class SampleShuffle { computed, torch };
template <>
inline constexpr std::string_view kEnumNames<SampleShuffle>[] = {"computed", "torch"};

// A permutation of 0 .. size-1 that is computed, not stored: eight Feistel rounds over the next even power of two,
// repeated until the value is below size (Black and Rogaway, Ciphers with arbitrary finite domains, 2002). Starting in
// the middle costs nothing. SampleShuffle::torch takes 4 bytes per sample.
class SampleOrder {
 public:
  // |shuffle| false: the identity. Throws ConfigError for more samples than torch's 32-bit generator is used for.
  SampleOrder(int64_t seed, int64_t epoch, int64_t size, bool shuffle, SampleShuffle kind = SampleShuffle::computed);

  int64_t size() const { return size_; }
  int64_t at(int64_t place) const;

 private:
  uint64_t permute(uint64_t value) const;

  int64_t size_;
  bool shuffle_;
  uint64_t key_ = 0;
  int half_bits_ = 0;
  std::vector<uint32_t> permutation_;  // of SampleShuffle::torch
};

// The division of a global batch.
struct BatchShape {
  int64_t micro_batch_size = 1;
  int64_t accumulation = 1;
  int64_t dp_size = 1;

  int64_t rows() const { return micro_batch_size * accumulation * dp_size; }
  // Returns the row of the global batch that is row |row| of micro-batch |micro_batch| on |dp_rank|.
  int64_t row_at(int64_t micro_batch, int64_t dp_rank, int64_t row) const {
    return (micro_batch * dp_size + dp_rank) * micro_batch_size + row;
  }
};

}  // namespace concord
