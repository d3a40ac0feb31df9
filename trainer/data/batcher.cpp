#include "trainer/data/batcher.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/refused_combinations.h"
#include "trainer/data/batch_division.h"
#include "trainer/data/text/document_ends.h"

namespace concord {
namespace {

void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least) throw ConfigError(fmt::format("{} is {}; must be >= {}", name, value, least));
}

void check(const DataArguments& given) {
  at_least("micro_batch_size", given.micro_batch_size, 1);
  at_least("accumulation", given.accumulation, 1);
  at_least("dp_size", given.dp_size, 1);
  at_least("pad_multiple", given.pad_multiple, 1);
  at_least("epochs", given.epochs, 0);
  at_least("prefetch", given.prefetch, 1);
  at_least("seq_length", given.seq_length, given.packing ? 1 : 0);
  if (given.dp_rank < 0 || given.dp_rank >= given.dp_size) {
    throw ConfigError(fmt::format("dp_rank is {}; must be from 0 to {}", given.dp_rank, given.dp_size - 1));
  }
  constexpr int64_t kMaxProduct = std::numeric_limits<int32_t>::max();  // keeps products of three of them far from 2^63
  if (given.micro_batch_size > kMaxProduct / given.accumulation / given.dp_size) {
    throw ConfigError(fmt::format("a global batch of {} x {} x {} samples is more than 2^31 - 1",
                                  given.micro_batch_size, given.accumulation, given.dp_size));
  }
}

void check_ramp(const BatchRamp& ramp, const BatchShape& shape) {
  const int64_t together = shape.micro_batch_size * shape.dp_size;
  if (ramp.start < 1 || ramp.increment < 1 || ramp.samples < 1) {
    throw ConfigError(
        fmt::format("rampup_batch_size is {},{},{}; all three must be >= 1: the first batch size, what it "
                    "grows by, and the samples in which it grows",
                    ramp.start, ramp.increment, ramp.samples));
  }
  if (ramp.start >= shape.rows() || (shape.rows() - ramp.start) % ramp.increment != 0) {
    throw ConfigError(
        fmt::format("rampup_batch_size: from {} in steps of {} the global batch size {} is not reached; "
                    "start below it, at a distance that is a multiple of the increment",
                    ramp.start, ramp.increment, shape.rows()));
  }
  if (ramp.start % together == 0 && ramp.increment % together == 0) return;
  throw ConfigError(
      fmt::format("rampup_batch_size: {} and {} have to be multiples of {}, the micro-batch size {} x {} "
                  "data-parallel ranks",
                  ramp.start, ramp.increment, together, shape.micro_batch_size, shape.dp_size));
}

// Returns one sample per row, padded to the longest of them, and rows of padding up to |rows|.
TokenBatch pad_samples(const std::vector<Sample>& samples, int64_t rows, const DataArguments& arguments) {
  int64_t longest = 1;
  for (const Sample& sample : samples) longest = std::max(longest, static_cast<int64_t>(sample.ids.size()));
  TokenBatch batch{.rows = rows,
                   .columns = padded_length(longest, arguments.pad_multiple),
                   .ids = {},
                   .labels = {},
                   .position_ids = {},
                   .cu_seqlens = {}};
  const size_t columns = static_cast<size_t>(batch.columns), tokens = columns * static_cast<size_t>(rows);
  batch.ids.reserve(tokens);
  batch.labels.reserve(tokens);
  for (size_t row = 0; row < samples.size(); ++row) {
    batch.ids.insert(batch.ids.end(), samples[row].ids.begin(), samples[row].ids.end());
    batch.ids.resize((row + 1) * columns, arguments.pad_id);
    batch.labels.insert(batch.labels.end(), samples[row].labels.begin(), samples[row].labels.end());
    batch.labels.resize((row + 1) * columns, kIgnoredToken);
    batch.media.append(samples[row].media);
  }
  batch.ids.resize(tokens, arguments.pad_id);
  batch.labels.resize(tokens, kIgnoredToken);
  return batch;
}

std::vector<int64_t> document_positions(const TokenBatch& batch, int64_t eod) {
  std::vector<int64_t> positions;
  for (auto row = batch.ids.begin(); row != batch.ids.end(); row += batch.columns) {
    const std::vector<int64_t> own = positions_in_documents({row, row + batch.columns}, eod);
    positions.insert(positions.end(), own.begin(), own.end());
  }
  return positions;
}

}  // namespace

Batcher::Batcher(const DataArguments& arguments, std::unique_ptr<SampleSource> source, DataCollator collator)
    : arguments_(arguments),
      group_(arguments.rows_per_sample()),
      shape_{arguments.micro_batch_size, arguments.accumulation, arguments.dp_size},
      source_(std::move(source)),
      collator_(std::move(collator)) {
  check(arguments_);
  check_source();
  if (arguments_.ramp) check_ramp(*arguments_.ramp, shape_);
  check_speeds();
  if (samples() < 1) throw ConfigError(source_->name() + ": contains no samples");
  const std::shared_ptr<const Epoch> first = epoch(0);
  if (batches(*first) < 1) {
    throw ConfigError(
        fmt::format("{} has {} {}, fewer than one global batch of {} ({} x {} micro-batches x {} data-parallel ranks); "
                    "use more data or a smaller batch, or keep the incomplete last batch (dataloader_drop_last false)",
                    source_->name(), rows(*first), arguments_.packing ? "packed rows" : "samples", shape_.rows(),
                    shape_.micro_batch_size, shape_.accumulation, shape_.dp_size));
  }
}

void Batcher::check_source() const {
  if (collator_ && (arguments_.packing || arguments_.pairs || arguments_.reset_attention_mask)) {
    throw ConfigError(fmt::format("{}: {}", source_->name(), refusal_message(Refused::collator_with_packing)));
  }
  if (!arguments_.acts_at_document_ends()) return;
  if (!source_->joins_documents()) {
    throw ConfigError(fmt::format(
        "{}: reset_position_ids, reset_attention_mask and eod_mask_loss are for text and Megatron data, which are cut "
        "into samples without regard to documents; these samples come one by one: remove them",
        source_->name()));
  }
  if (arguments_.eod_token_id < 0) {
    throw ConfigError(
        fmt::format("{}: it is not known which token ends a document; give eod_token_id", source_->name()));
  }
}

std::shared_ptr<const Epoch> Batcher::epoch(int64_t number) const {
  const std::lock_guard lock(mutex_);
  if (last_epoch_ != nullptr && last_epoch_->number == number) return last_epoch_;
  const bool shuffle = arguments_.shuffle && !(source_->is_shuffled() && number == 0);
  Epoch made{.number = number,
             .order = SampleOrder(arguments_.seed, number, samples(), shuffle, arguments_.sample_order)};
  if (arguments_.packing) {
    std::vector<int64_t> lengths(static_cast<size_t>(samples()));
    for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = length(made, static_cast<int64_t>(i));
    const auto pack = arguments_.packing_strategy == PackingStrategy::best_fit ? pack_best_fit : pack_first_fit;
    made.packed_rows = pack(lengths, arguments_.seq_length, arguments_.pad_multiple);
  }
  last_epoch_ = std::make_shared<const Epoch>(std::move(made));
  return last_epoch_;
}

int64_t Batcher::rows(const Epoch& epoch) const {
  return arguments_.packing ? static_cast<int64_t>(epoch.packed_rows.size()) : epoch.order.size();
}

int64_t Batcher::batches(const Epoch& epoch) const {
  return arguments_.drop_last ? rows(epoch) / shape_.rows() : (rows(epoch) - 1) / shape_.rows() + 1;
}

int64_t Batcher::batch_rows(int64_t consumed) const {
  return arguments_.ramp ? arguments_.ramp->rows_after(consumed, shape_.rows()) : shape_.rows();
}

bool Batcher::holds_a_batch(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const {
  return arguments_.drop_last ? first_row + batch_rows <= rows(epoch) : first_row < rows(epoch);
}

void Batcher::read(const Epoch& epoch, int64_t place, std::vector<Sample>* rows, std::vector<int64_t>* pairs) const {
  const int64_t sample = epoch.order.at(place);
  for (int64_t i = 0; i < group_; ++i) rows->push_back(source_->at(sample * group_ + i));
  if (arguments_.pairs) pairs->push_back(sample);
}

void Batcher::add_pairs(const std::vector<Sample>& rows, std::vector<int64_t> pairs, TokenBatch* batch) const {
  if (!arguments_.pairs) return;
  for (size_t i = 0; i < pairs.size(); ++i) batch->margins.push_back(2 * i < rows.size() ? rows[2 * i].margin : 0);
  batch->samples = std::move(pairs);
}

int64_t Batcher::length(const Epoch& epoch, int64_t place) const {
  const int64_t sample = epoch.order.at(place);
  if (group_ == 1) return source_->length(sample);
  int64_t sum = 0;
  for (int64_t i = 0; i < group_; ++i) {
    sum += padded_length(source_->length(sample * group_ + i), arguments_.pad_multiple);
  }
  return sum;
}

TokenBatch Batcher::collated(const std::vector<Sample>& samples) const {
  TokenBatch batch = collator_(samples, shape_.micro_batch_size);
  const auto tokens = static_cast<size_t>(batch.rows * batch.columns);
  const bool has_positions = batch.position_ids.empty() || batch.position_ids.size() == tokens;
  if (batch.rows == shape_.micro_batch_size && batch.columns > 0 && batch.columns % arguments_.pad_multiple == 0 &&
      batch.ids.size() == tokens && batch.labels.size() == tokens && has_positions && batch.cu_seqlens.empty()) {
    return batch;
  }
  throw ConfigError(fmt::format(
      "the data collator made a batch of {} rows and {} columns with {} ids, {} labels and {} positions; must be {} "
      "rows, columns that are a multiple of {}, and a number for each",
      batch.rows, batch.columns, batch.ids.size(), batch.labels.size(), batch.position_ids.size(),
      shape_.micro_batch_size, arguments_.pad_multiple));
}

TokenBatch Batcher::padded_batch(const Epoch& epoch, int64_t first_row) const {
  std::vector<Sample> samples;
  std::vector<int64_t> pairs;
  for (int64_t row = first_row; row < std::min(first_row + shape_.micro_batch_size, rows(epoch)); ++row) {
    read(epoch, row, &samples, &pairs);
  }
  const int64_t eod = arguments_.eod_token_id;
  if (arguments_.eod_mask_loss) {
    for (Sample& sample : samples) mask_document_ends(eod, &sample);
  }
  if (collator_) return collated(samples);
  if (arguments_.reset_attention_mask) {
    if (samples.empty()) samples.push_back({{arguments_.pad_id}, {kIgnoredToken}});
    return pack_documents(samples, arguments_);
  }
  if (arguments_.pairs) pairs.resize(static_cast<size_t>(shape_.micro_batch_size), -1);
  TokenBatch batch = pad_samples(samples, shape_.micro_batch_size * group_, arguments_);
  if (arguments_.reset_position_ids) batch.position_ids = document_positions(batch, eod);
  add_pairs(samples, std::move(pairs), &batch);
  return batch;
}

TokenBatch Batcher::packed_batch(const Epoch& epoch, int64_t first_row) const {
  std::vector<Sample> samples;
  std::vector<int64_t> pairs;
  for (int64_t row = first_row; row < std::min(first_row + shape_.micro_batch_size, rows(epoch)); ++row) {
    for (const int64_t place : epoch.packed_rows[static_cast<size_t>(row)]) read(epoch, place, &samples, &pairs);
  }
  if (samples.empty()) {
    samples.resize(static_cast<size_t>(group_), {{arguments_.pad_id}, {kIgnoredToken}});
    if (arguments_.pairs) pairs.push_back(-1);
  }
  TokenBatch batch = pack_samples(samples, arguments_.pad_multiple, arguments_.pad_id);
  add_pairs(samples, std::move(pairs), &batch);
  return batch;
}

std::vector<TokenBatch> Batcher::make(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const {
  std::vector<TokenBatch> micro_batches;
  for (const int64_t number : numbers(batch_rows)) {
    const int64_t row = first_row + number * shape_.micro_batch_size;
    micro_batches.push_back(arguments_.packing ? packed_batch(epoch, row) : padded_batch(epoch, row));
  }
  return micro_batches;
}

std::vector<int64_t> Batcher::numbers(int64_t batch_rows) const {
  const int64_t all = batch_rows / shape_.micro_batch_size;
  const std::vector<double>& speeds = arguments_.speeds;
  const std::vector<int64_t> counts =
      speeds.empty() ? std::vector<int64_t>(static_cast<size_t>(shape_.dp_size), all / shape_.dp_size)
                     : divide_by_speed(all, speeds, arguments_.micro_batch_unit);
  return micro_batches_of_replica(counts, arguments_.dp_rank);
}

void Batcher::set_speeds(std::vector<double> speeds) {
  std::swap(arguments_.speeds, speeds);
  try {
    check_speeds();
  } catch (...) {
    std::swap(arguments_.speeds, speeds);
    throw;
  }
}

// The first batch is the smallest.
void Batcher::check_speeds() const {
  if (arguments_.speeds.empty()) return;
  if (std::ssize(arguments_.speeds) != shape_.dp_size) {
    throw ConfigError(fmt::format("there are {} speeds for {} data-parallel replicas; must be equal",
                                  arguments_.speeds.size(), shape_.dp_size));
  }
  numbers(batch_rows(0));
}

BatchContents Batcher::contents(const Epoch& epoch, int64_t first_row, int64_t batch_rows) const {
  BatchContents contents;
  const auto add = [&](int64_t place) {
    ++contents.samples;
    for (int64_t i = 0; i < group_; ++i) {
      const int64_t length = source_->length(epoch.order.at(place) * group_ + i);
      contents.tokens += length;
      contents.squared_lengths += static_cast<double>(length) * static_cast<double>(length);
      for (const int64_t patches : source_->media_patches(epoch.order.at(place) * group_ + i)) {
        contents.patches += patches;
        contents.squared_patches += static_cast<double>(patches) * static_cast<double>(patches);
      }
    }
  };
  for (int64_t row = first_row; row < std::min(first_row + batch_rows, rows(epoch)); ++row) {
    if (!arguments_.packing) {
      add(row);
      continue;
    }
    for (const int64_t place : epoch.packed_rows[static_cast<size_t>(row)]) add(place);
  }
  return contents;
}

DataIdentity Batcher::identity() const {
  const DataArguments& given = arguments_;
  DataIdentity identity = source_->identity();
  identity.emplace_back("data_seed", std::to_string(given.seed));
  identity.emplace_back("shuffle", given.shuffle ? "true" : "false");
  identity.emplace_back("seq_length", std::to_string(given.seq_length));
  identity.emplace_back("sequence_packing", given.packing ? "true" : "false");
  if (given.packing) identity.emplace_back("padding to a multiple of", std::to_string(given.pad_multiple));
  // Included only if it is not the default, since checkpoints from before the option lack it.
  if (given.packing && given.packing_strategy != PackingStrategy::first_fit) {
    identity.emplace_back("packing_strategy", name_of(given.packing_strategy));
  }
  // Included only if set, since checkpoints from before the options lack them.
  if (given.shuffle && given.sample_order != SampleShuffle::computed) {
    identity.emplace_back("sample_order", name_of(given.sample_order));
  }
  if (!given.drop_last) identity.emplace_back("dataloader_drop_last", "false");
  if (given.reset_position_ids) identity.emplace_back("reset_position_ids", "true");
  if (given.reset_attention_mask) identity.emplace_back("reset_attention_mask", "true");
  if (given.eod_mask_loss) identity.emplace_back("eod_mask_loss", "true");
  if (given.acts_at_document_ends()) identity.emplace_back("eod_token_id", std::to_string(given.eod_token_id));
  if (given.ramp) {
    identity.emplace_back("rampup_batch_size",
                          fmt::format("{},{},{}", given.ramp->start, given.ramp->increment, given.ramp->samples));
  }
  return identity;
}

}  // namespace concord
