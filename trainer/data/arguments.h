// Options of a data loader: plain values, set by the trainer from its own arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "trainer/data/batch_ramp.h"
#include "trainer/data/media/media_settings.h"
#include "trainer/data/sampler.h"
#include "trainer/data/text/dataset_info.h"

namespace concord {

enum class DataPart { train, valid, test };

// Truncation of samples that are too long: right or left removes the end or the start, drop omits the sample, split
// splits it.
enum class Truncation { right, left, drop, split };
template <>
inline constexpr std::string_view kEnumNames<Truncation>[] = {"right", "left", "drop", "split"};

enum class PackingStrategy { first_fit, best_fit };
template <>
inline constexpr std::string_view kEnumNames<PackingStrategy>[] = {"first_fit", "best_fit"};

// The loader checks all of them on construction and throws ConfigError with a message for invalid ones.
struct DataArguments {
  // Source: a Megatron prefix (PREFIX.bin and PREFIX.idx), a file ending in .jsonl, .txt or .safetensors, a table
  // (trainer/data/text/records.h), or a folder or pattern of files.
  std::string path = {};
  std::optional<DatasetInfo> dataset = {};  // column names of |path|; nullopt: those of parse_json_record
  std::string cache = {};  // folder of the token cache (trainer/data/text/token_cache.h); empty: not cached
  std::vector<std::string> blend = {};         // several such sources instead, see trainer/data/sources/blend.h
  std::vector<DatasetInfo> blended_sets = {};  // |dataset| of each source in |blend|; empty: none
  // Weights of training, validation and test data in the source; empty: everything is used. |part| selects one.
  std::vector<std::string> split = {};
  DataPart part = DataPart::train;
  int64_t max_samples = 0;  // only the first records or documents of each source, before |split|; 0: all of them

  // The tokenizer: "byte", which is built in, or a HF tokenizer.json or its folder, which need Python
  // (trainer/data/text/tokenizer.h). Empty: no tokenizer, and text is rejected. Files of ids need none.
  std::string tokenizer = "byte";
  std::string chat_template = {};  // a Jinja file for conversations; empty: the tokenizer's own

  MediaSettings media = {};  // how conversations with images and videos are converted, in the token cache

  // Megatron data and text are split into samples of this many tokens. For other data it is the maximum length of a
  // sample, 0 for any length.
  int64_t seq_length = 0;
  // Individual samples are truncated to this many tokens; 0: disabled, and samples longer than seq_length are rejected.
  int64_t cutoff_len = 0;
  Truncation truncation = Truncation::right;
  int64_t vocab_size = 0;  // ids at or above it are an error; 0: ids are not checked

  // A global batch is micro_batch_size * accumulation * dp_size samples; trainer/data/sampler.h assigns them to ranks.
  int64_t micro_batch_size = 1;
  int64_t accumulation = 1;
  std::optional<BatchRamp> ramp = {};  // ramp up to that size; nullopt: all batches have it
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  // Relative speeds of the dp ranks, by which micro-batches are divided (batch_division.h); empty: all have the same
  // number. Each rank's is a multiple of micro_batch_unit.
  std::vector<double> speeds = {};
  int64_t micro_batch_unit = 1;

  int64_t seed = 42;
  bool shuffle = true;
  SampleShuffle sample_order = SampleShuffle::computed;
  bool drop_last = true;  // false: the last batch of an epoch is padded with rows without counted tokens
  int64_t epochs = 0;     // number of epochs before next() ends; 0: unlimited

  // Megatron data and text, shuffled: number of samples that the run needs (steps * global batch). Documents are then
  // repeated and shuffled over as many epochs as necessary, like Megatron, and this is one epoch of the loader.
  std::optional<int64_t> samples_wanted = {};

  // Samples are preference pairs of two rows each: chosen and rejected (trainer/data/batcher.h).
  bool pairs = false;
  int64_t rows_per_sample() const { return pairs ? 2 : 1; }

  // Megatron's options for the end-of-document token in rows cut from documents (document_ends.h).
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  int64_t eod_token_id = -1;  // end-of-document token; -1: that of the tokenizer
  bool acts_at_document_ends() const { return reset_position_ids || reset_attention_mask || eod_mask_loss; }

  bool packing = false;  // several samples per row of seq_length tokens; see trainer/data/packing.h
  PackingStrategy packing_strategy = PackingStrategy::first_fit;
  int64_t pad_multiple =
      1;  // row (or packed sequence) lengths are multiples of it: 2 * cp, times tp under sequence parallelism
  int64_t pad_id = 0;  // padding token; never counted

  int64_t prefetch = 4;  // number of global batches to prefetch
  bool operator==(const DataArguments&) const = default;
};

}  // namespace concord
