// Assembles a rank's micro-batches from samples: a pure function of the data and the position. The loader calls it in
// advance.
//
// With preference pairs (DataArguments::pairs), samples 2i and 2i + 1 of the source are one sample: two consecutive
// rows of one micro-batch, or two sequences of a packed row, the chosen one first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "trainer/data/arguments.h"
#include "trainer/data/packing.h"
#include "trainer/data/sampler.h"
#include "trainer/data/sources/sample_source.h"
#include "trainer/data/token_batch.h"

namespace concord {

// The order of one epoch: its samples, and the packed rows they fill, if any.
struct Epoch {
  int64_t number = 0;
  SampleOrder order;
  PackedRows packed_rows = {};  // indices in |order|; empty if not packed
};

// HF's data_collator: builds a micro-batch of |rows| rows from |samples|, in order. At the end of evaluation data there
// are fewer samples; the other rows then count no token. Called on the loader's thread.
using DataCollator = std::function<TokenBatch(const std::vector<Sample>& samples, int64_t rows)>;

// Threads: any.
class Batcher {
 public:
  // Throws ConfigError for invalid arguments, and if an epoch holds no global batch. |collator|, if given, builds the
  // batches; its results are checked.
  Batcher(const DataArguments& arguments, std::unique_ptr<SampleSource> source, DataCollator collator = {});

  // Returns the micro-batches of this dp rank for the global batch of |batch_rows| that starts at |first_row| of
  // |epoch|. Rows beyond the end of the epoch are padding that counts no token.
  std::vector<TokenBatch> make(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const;

  // Returns the numbers of these micro-batches in the global batch. Row i of the global batch is in number
  // i / micro_batch_size.
  std::vector<int64_t> numbers(int64_t batch_rows) const;
  // Divides later batches by these speeds (DataArguments::speeds).
  void set_speeds(std::vector<double> speeds);

  // Describes the same batch over all ranks. Reads lengths only.
  BatchContents contents(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const;

  // Returns the size of the global batch after |consumed| rows.
  int64_t batch_rows(int64_t consumed) const;
  // Returns whether a batch of |batch_rows| starts at |first_row|.
  bool holds_a_batch(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const;

  // Caches the last epoch, since packing takes a while.
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  int64_t rows(const Epoch& epoch) const;
  int64_t batches(const Epoch& epoch) const;  // batches of the full size
  int64_t global_batch_size() const { return shape_.rows(); }
  int64_t samples() const { return source_->size() / group_; }  // per epoch
  const SampleSource& source() const { return *source_; }
  DataIdentity identity() const;  // reads all of the data, or parts of it if it is large

 private:
  // Appends the rows of the sample at |place|.
  void read(const Epoch& epoch, int64_t place, std::vector<Sample>* rows, std::vector<int64_t>* pairs) const;
  void add_pairs(const std::vector<Sample>& rows, std::vector<int64_t> pairs, TokenBatch* batch) const;
  int64_t length(const Epoch& epoch, int64_t place) const;  // length in a packed row
  void check_source() const;
  TokenBatch collated(const std::vector<Sample>& samples) const;
  TokenBatch padded_batch(const Epoch& epoch, int64_t first_row) const;
  TokenBatch packed_batch(const Epoch& epoch, int64_t first_row) const;
  void check_speeds() const;

  DataArguments arguments_;
  int64_t group_;  // rows per sample
  BatchShape shape_;
  std::unique_ptr<SampleSource> source_;
  DataCollator collator_;  // empty: none
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> last_epoch_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord
