// What the training loop reads: global batches of this rank's micro-batches, made ahead on a thread of their own.
//
// Example, given const DataArguments& arguments, void train(const MicroBatch&):
//   #include "trainer/data/to_micro_batch.h"
//   DataLoader loader(arguments);
//   while (auto batch = loader.next()) {
//     for (TokenBatch& tokens : *batch) train(to_micro_batch(std::move(tokens)));
//   }
//
// to_micro_batch (trainer/data/to_micro_batch.h) is the only part of trainer/data that needs libtorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/data/arguments.h"
#include "trainer/data/batcher.h"
#include "trainer/data/sample_source.h"
#include "trainer/data/token_batch.h"

namespace concord {

// Where a run is in its data: the next global batch begins at |sample| of |epoch|. The same on every rank and under
// every layout. A checkpoint keeps these numbers.
struct DataPosition {
  int64_t epoch = 0;
  int64_t sample = 0;        // counted in the order of the epoch; rows where sequences are packed
  uint64_t fingerprint = 0;  // of DataLoader::identity; another one is not continued
  int64_t consumed = 0;      // of all epochs, on which the size of a batch that grows depends

  bool operator==(const DataPosition&) const = default;
};

// Threads: one at a time. The source is read on the loader's own thread, which ends with it.
class DataLoader {
 public:
  // Opens and checks the data. Throws ConfigError.
  explicit DataLoader(const DataArguments& arguments);
  // The same from samples of the caller's own; |arguments.path| is not read. |collator| may be empty.
  DataLoader(const DataArguments& arguments, std::unique_ptr<SampleSource> source, DataCollator collator = {});
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // The |accumulation| micro-batches of this dp rank for the next step; nothing after the last epoch. Waits for the
  // thread to have made them, and throws what it threw. Epochs follow each other; position().epoch tells which it is.
  std::optional<std::vector<TokenBatch>> next();

  // Of the batch that next() gave last, over all data-parallel ranks.
  const BatchContents& contents() const { return contents_; }
  // Epochs done, with the part of the one that runs.
  double epochs() const;
  int64_t batch_rows() const;  // samples (rows where packed) of the next batch, over all data-parallel ranks
  int64_t epoch() const { return position_.epoch; }
  // What fixes the samples and their order: contents, seed, shuffle, ... Computed by the first call, which may read all
  // of the data.
  const DataIdentity& identity() const;
  // After the batch that next() gave last, whatever has been made ahead. Has the fingerprint of identity().
  DataPosition position() const;
  // Continues there. Throws ConfigError if |position| belongs to other data or another order.
  void restore(const DataPosition& position);

  int64_t global_batch_size() const;     // samples (rows where packed) of all dp ranks in a step; a ramp ends there
  int64_t samples() const;               // of one epoch, packed or not
  int64_t rows(int64_t epoch) const;     // the same; packed: rows they fill
  int64_t batches(int64_t epoch) const;  // steps of an epoch
  const SampleSource& source() const;

 private:
  class Thread;
  class State;
  std::unique_ptr<State> state_;
  std::unique_ptr<Thread> thread_;  // started by the first next()
  DataPosition position_;
  BatchContents contents_;
};

}  // namespace concord
