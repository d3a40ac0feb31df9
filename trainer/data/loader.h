// The data loader of the training loop: global batches of this rank's micro-batches, prefetched on a separate thread.
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
#include "trainer/data/sources/sample_source.h"
#include "trainer/data/token_batch.h"

namespace concord {

// The position of a run in its data: the next global batch starts at |sample| of |epoch|. The same on every rank and
// for every layout. Stored in checkpoints.
struct DataPosition {
  int64_t epoch = 0;
  int64_t sample = 0;        // index in the order of the epoch; counts rows if sequences are packed
  uint64_t fingerprint = 0;  // hash of DataLoader::identity; restore() rejects a different one
  int64_t consumed = 0;      // over all epochs; determines the batch size during a ramp-up

  bool operator==(const DataPosition&) const = default;
};

// Threads: one at a time. The source is read on the loader's own thread, which ends with the loader.
class DataLoader {
 public:
  // Opens and checks the data. Throws ConfigError.
  explicit DataLoader(const DataArguments& arguments);
  // Like the constructor above, with samples from |source|; |arguments.path| is not read. |collator| may be empty.
  DataLoader(const DataArguments& arguments, std::unique_ptr<SampleSource> source, DataCollator collator = {});
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Returns the |accumulation| micro-batches of this dp rank for the next step; nullopt after the last epoch. Waits:
  // until the thread has built them. Rethrows its error. Epochs are consecutive; position().epoch is the current one.
  std::optional<std::vector<TokenBatch>> next();

  // Returns the numbers in the global batch of the micro-batches that next() returned last.
  const std::vector<int64_t>& numbers() const { return numbers_; }
  // Divides later batches among the dp ranks by these speeds (DataArguments::speeds). Every rank calls it with the same
  // ones, after the same batch. Throws ConfigError like the constructor; nothing has changed then.
  void set_speeds(std::vector<double> speeds);

  // Describes the batch that next() returned last, over all data-parallel ranks.
  const BatchContents& contents() const { return contents_; }
  // Returns the epochs done, including the fraction of the current one.
  double epochs() const;
  int64_t batch_rows() const;  // samples (rows if packed) of the next batch, over all data-parallel ranks
  int64_t epoch() const { return position_.epoch; }
  // Everything that determines the samples and their order: contents, seed, shuffle, ... Computed by the first call,
  // which may read all of the data.
  const DataIdentity& identity() const;
  // Returns the position after the batch that next() returned last, regardless of prefetching. Has the fingerprint of
  // identity().
  DataPosition position() const;
  // Continues at |position|. Throws ConfigError if it belongs to other data or a different order.
  void restore(const DataPosition& position);

  int64_t global_batch_size() const;     // samples (rows if packed) of all dp ranks in a step, after any ramp-up
  int64_t samples() const;               // per epoch, packed or not
  int64_t rows(int64_t epoch) const;     // rows of an epoch; the same as samples() unless packed
  int64_t batches(int64_t epoch) const;  // steps of an epoch
  const SampleSource& source() const;

 private:
  class Thread;
  class State;
  std::unique_ptr<State> state_;
  std::unique_ptr<Thread> thread_;  // started by the first next()
  DataPosition position_;
  BatchContents contents_;
  std::vector<int64_t> numbers_;
};

}  // namespace concord
