// From samples to a rank's micro-batches: a pure function of the data and the position. The loader calls it ahead of
// time.
//
// Of pairs (DataArguments::pairs), samples 2i and 2i + 1 of the source are one sample here: they are always two rows
// that follow each other in one micro-batch, or two sequences of a packed row, the chosen one first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "trainer/data/arguments.h"
#include "trainer/data/packing.h"
#include "trainer/data/sample_source.h"
#include "trainer/data/sampler.h"
#include "trainer/data/token_batch.h"

namespace concord {

// The order of one epoch: its samples, and the rows they fill where they are packed.
struct Epoch {
  int64_t number = 0;
  SampleOrder order;
  PackedRows packed_rows = {};  // places in |order|; empty if not packed
};

// HF's data_collator: a micro-batch of |rows| rows from the samples that are to be in it, in their order. At the end of
// evaluation data there are fewer of them; other rows then count no token. Called by the loader's thread.
using DataCollator = std::function<TokenBatch(const std::vector<Sample>& samples, int64_t rows)>;

// Threads: any.
class Batcher {
 public:
  // Throws ConfigError for arguments that are invalid, and if an epoch holds no global batch. With |collator| it makes
  // the batches; what it makes is checked.
  Batcher(const DataArguments& arguments, std::unique_ptr<SampleSource> source, DataCollator collator = {});

  // The micro-batches of this dp rank for the global batch of |batch_rows| that begins at |first_row| of |epoch|. Rows
  // beyond the end of the epoch are filled up with padding that counts no token.
  std::vector<TokenBatch> make(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const;

  // The same batch, all ranks of it. Reads lengths only.
  BatchContents contents(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const;

  // Of the global batch that follows |consumed| rows.
  int64_t batch_rows(int64_t consumed) const;
  // Whether a batch of |batch_rows| begins at |first_row|.
  bool holds_a_batch(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const;

  // Packing an epoch takes a while, so the last one is kept.
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  int64_t rows(const Epoch& epoch) const;
  int64_t batches(const Epoch& epoch) const;  // of the full size
  int64_t global_batch_size() const { return shape_.rows(); }
  int64_t samples() const { return source_->size() / group_; }  // of an epoch
  const SampleSource& source() const { return *source_; }
  DataIdentity identity() const;  // reads all of the data, or parts of it where it is large

 private:
  // Adds the rows of the sample there.
  void read(const Epoch& epoch, int64_t place, std::vector<Sample>* rows, std::vector<int64_t>* pairs) const;
  void add_pairs(const std::vector<Sample>& rows, std::vector<int64_t> pairs, TokenBatch* batch) const;
  int64_t length(const Epoch& epoch, int64_t place) const;  // in a packed row
  void check_source() const;
  TokenBatch collated(const std::vector<Sample>& samples) const;
  TokenBatch padded_batch(const Epoch& epoch, int64_t first_row) const;
  TokenBatch packed_batch(const Epoch& epoch, int64_t first_row) const;

  DataArguments arguments_;
  int64_t group_;  // rows of a sample
  BatchShape shape_;
  std::unique_ptr<SampleSource> source_;
  DataCollator collator_;  // empty: none
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> last_epoch_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord
