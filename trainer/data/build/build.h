// `concord data build`: converts text or JSONL to a Megatron .bin/.idx pair, or conversations to samples, with images
// and videos to a folder of shards (build_media.h).
//
// The input is split into shards at document boundaries, by its bytes alone. Workers tokenize each shard into its own
// files in OUTPUT.build/, which are renamed when they are complete; at the end they are concatenated. So a build that
// was killed continues with the missing shards, and the output bytes depend neither on the number of workers nor on
// interruptions. Nothing exists under the final name before everything has been written. The tokenizer is stored with
// the data, in OUTPUT.tokenizer/ (trainer/data/text/tokenizer_files.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files/output_check.h"
#include "trainer/data/media/media_settings.h"
#include "trainer/data/text/dataset_info.h"

namespace concord {

struct BuildArguments {
  // .txt, .jsonl and files of records (trainer/data/text/records.h), folders and patterns of them, in order. Records
  // are first converted to lines in OUTPUT.build/.
  std::vector<std::string> inputs = {};
  std::optional<DatasetInfo> dataset = {};  // column names of the records; nullopt: those of parse_json_record
  std::string output = {};                  // the prefix; with sft the .jsonl; with media the folder
  std::string tokenizer = "byte";           // or a tokenizer.json (trainer/data/text/tokenizer_process.h)
  bool append_eod = true;                   // append the tokenizer's end-of-document token to each document
  bool sft =
      false;  // convert lines with "messages" to "input_ids" and "labels"; the loss covers the assistant's messages
  MediaSettings media = {};        // a processor: conversations may have images and videos; needs sft
  std::string chat_template = {};  // a Jinja file; empty: the tokenizer's own
  int64_t workers = 0;             // 0: one per core
  // Approximate input bytes per shard; with media at most kMediaPieceBytes, which grow when they are converted.
  int64_t shard_bytes = int64_t{16} << 20;
  int64_t media_shard_bytes = int64_t{1} << 30;  // most bytes of a shard of the output with media, or one sample
  bool overwrite = false;                        // replace an existing output, or a build with other settings
};

struct BuildProgress {
  int64_t shards_done = 0;
  int64_t shards = 0;
  int64_t shards_kept = 0;  // shards reused from an earlier build that was stopped
  int64_t bytes_done = 0;   // of the input
  int64_t bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
};

// Throws ConfigError unless |output|, as in BuildArguments, can be written with its tokenizer
// (core/base/files/output_check.h).
void check_data_output(const std::string& output, const OutputRules& rules);

// Calls |report| from the calling thread: while shards are built, and once at the end. Throws ConfigError for invalid
// arguments or input, std::runtime_error if the disk is full; finished shards are kept.
BuildProgress build_data(const BuildArguments& arguments, const std::function<void(const BuildProgress&)>& report);

// Returns "12/40 shards, 192.0 of 640.0 MiB, 3.1 M tokens, 25.0 MiB/s, 18 s left".
std::string progress_line(const BuildProgress& progress, double seconds);

}  // namespace concord
