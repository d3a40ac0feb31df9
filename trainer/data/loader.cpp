#include "trainer/data/loader.h"

#include <fmt/core.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "platform/base/thread_safety.hpp"
#include "trainer/data/batcher.h"

namespace concord {
namespace {

// An item of the queue: a batch and the position after it, an exception, or (neither) the end.
struct Item {
  std::optional<std::vector<TokenBatch>> batch;
  std::vector<int64_t> numbers;
  BatchContents contents;
  DataPosition after;
  std::exception_ptr error;

  bool is_last() const { return !batch; }
};

}  // namespace

class DataLoader::State {
 public:
  State(const DataArguments& arguments, std::unique_ptr<SampleSource> source, DataCollator collator)
      : batcher(arguments, std::move(source), std::move(collator)),
        epochs(arguments.epochs),
        has_ramp(arguments.ramp.has_value()),
        prefetch(static_cast<size_t>(arguments.prefetch)) {}

  // Returns the batch at |position| and advances it; the end after the last epoch.
  Item make(DataPosition* position) const {
    if (epochs > 0 && position->epoch >= epochs) return {};
    const std::shared_ptr<const Epoch> epoch = batcher.epoch(position->epoch);
    const int64_t rows = batcher.batch_rows(position->consumed);
    Item item{.batch = batcher.make(*epoch, position->sample, rows),
              .numbers = batcher.numbers(rows),
              .contents = batcher.contents(*epoch, position->sample, rows),
              .after = {},
              .error = nullptr};
    position->sample += rows;
    position->consumed += rows;
    if (!holds_a_batch(*epoch, *position)) *position = {.epoch = position->epoch + 1, .consumed = position->consumed};
    item.after = *position;
    return item;
  }

  bool holds_a_batch(const Epoch& epoch, const DataPosition& position) const {
    return batcher.holds_a_batch(epoch, position.sample, batcher.batch_rows(position.consumed));
  }

  // Called by the loader's user thread.
  const DataIdentity& identity() const {
    if (!identity_) identity_ = batcher.identity();
    return *identity_;
  }
  uint64_t fingerprint() const {
    std::string text;
    for (const auto& [name, value] : identity()) text += fmt::format("{} {}\n", name, value);
    return stable_hash(text);
  }

  Batcher batcher;
  const int64_t epochs;
  const bool has_ramp;
  const size_t prefetch;

 private:
  mutable std::optional<DataIdentity> identity_;
};

// Produces items starting at |position|, at most |prefetch| ahead of the consumer.
class DataLoader::Thread {
 public:
  Thread(const State& state, const DataPosition& position) : state_(state) {
    thread_ = std::thread([this, position] { run(position); });
  }
  ~Thread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // The last item stays, so that later calls return it again.
  Item take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this]() CONCORD_REQUIRES(mutex_) { return !items_.empty(); });
    if (items_.front().is_last()) return items_.front();
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return item;
  }

 private:
  void run(DataPosition position) {
    for (bool more = true; more;) {
      Item item;
      try {
        item = state_.make(&position);
      } catch (...) {
        item = {.batch = {}, .numbers = {}, .contents = {}, .after = {}, .error = std::current_exception()};
      }
      more = !item.is_last();
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this]() CONCORD_REQUIRES(mutex_) { return stop_ || items_.size() < state_.prefetch; });
      if (stop_) return;
      items_.push_back(std::move(item));
      lock.unlock();
      changed_.notify_all();
    }
  }

  const State& state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_ CONCORD_GUARDED_BY(mutex_);
  bool stop_ CONCORD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

DataLoader::DataLoader(const DataArguments& arguments) : DataLoader(arguments, open_sample_source(arguments)) {}

DataLoader::DataLoader(const DataArguments& arguments, std::unique_ptr<SampleSource> source, DataCollator collator)
    : state_(std::make_unique<State>(arguments, std::move(source), std::move(collator))) {}

DataLoader::~DataLoader() = default;

std::optional<std::vector<TokenBatch>> DataLoader::next() {
  if (thread_ == nullptr) thread_ = std::make_unique<Thread>(*state_, position_);
  Item item = thread_->take();
  if (item.error) std::rethrow_exception(item.error);
  if (item.batch) {
    position_ = item.after;
    contents_ = item.contents;
    numbers_ = std::move(item.numbers);
  }
  return std::move(item.batch);
}

const DataIdentity& DataLoader::identity() const { return state_->identity(); }

DataPosition DataLoader::position() const {
  return {position_.epoch, position_.sample, state_->fingerprint(), position_.consumed};
}

void DataLoader::set_speeds(std::vector<double> speeds) {
  thread_.reset();  // batches that it has prefetched are divided by the former speeds
  state_->batcher.set_speeds(std::move(speeds));
}

int64_t DataLoader::batch_rows() const { return state_->batcher.batch_rows(position_.consumed); }

double DataLoader::epochs() const {
  const int64_t all = state_->has_ramp ? rows(position_.epoch) : batches(position_.epoch) * global_batch_size();
  return static_cast<double>(position_.epoch) + static_cast<double>(position_.sample) / static_cast<double>(all);
}

void DataLoader::restore(const DataPosition& position) {
  if (position.fingerprint != state_->fingerprint()) {
    throw ConfigError(
        fmt::format("{}: the position to resume from belongs to other data or another sample order; use the same data, "
                    "seed, shuffle, sequence length and packing, or start from the beginning of the data",
                    source().name()));
  }
  const bool possible =
      position.epoch >= 0 && position.sample >= 0 && position.consumed >= 0 &&
      (position.sample == 0 || state_->holds_a_batch(*state_->batcher.epoch(position.epoch), position));
  if (!possible) {
    throw ConfigError(fmt::format("{}: cannot resume from epoch {}, sample {}: out of range", source().name(),
                                  position.epoch, position.sample));
  }
  thread_.reset();
  position_ = position;
}

int64_t DataLoader::global_batch_size() const { return state_->batcher.global_batch_size(); }
int64_t DataLoader::samples() const { return state_->batcher.samples(); }
int64_t DataLoader::rows(int64_t epoch) const { return state_->batcher.rows(*state_->batcher.epoch(epoch)); }
int64_t DataLoader::batches(int64_t epoch) const { return state_->batcher.batches(*state_->batcher.epoch(epoch)); }
const SampleSource& DataLoader::source() const { return state_->batcher.source(); }

}  // namespace concord
