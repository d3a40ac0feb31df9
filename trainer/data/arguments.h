// What a data loader is made from: plain values, filled in by the trainer from its own arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/batch_ramp.h"
#include "trainer/data/text/dataset_info.h"

namespace concord {

enum class DataPart { train, valid, test };

// The loader checks all of it when it is made and throws ConfigError with a sentence for what cannot be.
struct DataArguments {
  // What to read. A Megatron prefix (PREFIX.bin and PREFIX.idx), a file ending in .jsonl, .txt or .safetensors, a table
  // (trainer/data/text/records.h), or a folder or pattern of files.
  std::string path = {};
  std::optional<DatasetInfo> dataset = {};  // what the records of |path| are called; none: as parse_json_record has it
  std::string cache = {};  // folder in which tokens of text are kept (trainer/data/text/token_cache.h); empty: not
  std::vector<std::string> blend = {};         // several such sources instead, see trainer/data/blend.h
  std::vector<DatasetInfo> blended_sets = {};  // of each of them |dataset|; empty: none
  // Weights of training, validation and test data in what is read; empty: all of it is taken. |part| is the one taken.
  std::vector<std::string> split = {};
  DataPart part = DataPart::train;

  // What makes tokens of text: "byte", which is built in, or a HF tokenizer.json or its folder, which need Python
  // (trainer/data/text/tokenizer.h). Empty: no tokenizer, and text is refused. Files of ids need none.
  std::string tokenizer = "byte";
  std::string chat_template = {};  // a Jinja file for conversations; empty: the tokenizer's own

  // Megatron data and text are split into samples of this many tokens. For the others it is the longest a sample may
  // be, 0 for any length.
  int64_t seq_length = 0;
  // Samples that come one by one are cut to this many tokens; 0: none is, and longer ones than seq_length are refused.
  int64_t cutoff_len = 0;
  // cut the end; "left": the beginning; "drop": leave such samples out; "split": each becomes several
  std::string truncation = "right";
  int64_t vocab_size = 0;  // an id at or above it is an error; 0: ids are not checked

  // A global batch is micro_batch_size * accumulation * dp_size samples; see trainer/data/sampler.h for who takes
  // which.
  int64_t micro_batch_size = 1;
  int64_t accumulation = 1;
  std::optional<BatchRamp> ramp = {};  // to that size; none: all batches have it
  int64_t dp_rank = 0;
  int64_t dp_size = 1;

  int64_t seed = 42;
  bool shuffle = true;
  bool drop_last = true;  // false: the last batch of an epoch is filled up with rows that count no token
  int64_t epochs = 0;     // passes over the data before next() ends; 0: unlimited

  // Megatron data and text, shuffled: samples that the run will need (steps * global batch). Documents are then
  // repeated and shuffled over as many epochs as that takes, as Megatron does it, and this is one epoch of the loader.
  std::optional<int64_t> samples_wanted = {};

  // Samples are pairs, two rows each: a completion that is preferred and one that is not (trainer/data/batcher.h).
  bool pairs = false;

  // Megatron's, of rows that are cut from documents: what happens at the token that ends one (document_ends.h).
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  int64_t eod_token_id = -1;  // that token; -1: that of the tokenizer
  bool acts_at_document_ends() const { return reset_position_ids || reset_attention_mask || eod_mask_loss; }

  bool packing = false;  // several samples in a row of seq_length tokens; see trainer/data/packing.h
  std::string packing_strategy = "first_fit";  // or "best_fit"
  int64_t pad_multiple =
      1;  // row (or packed sequence) lengths are multiples of it: 2 * cp, times tp where tp cuts the sequence
  int64_t pad_id = 0;  // the token that fills up; never counted

  int64_t prefetch = 4;  // global batches made ahead
  bool operator==(const DataArguments&) const = default;
};

}  // namespace concord
