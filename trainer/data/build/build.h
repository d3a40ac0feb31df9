// `concord data build`: text or JSONL to a Megatron .bin/.idx pair, or conversations to samples.
//
// The input is split into shards at document boundaries, by its bytes alone. Workers tokenize shards, each into
// files of its own in OUTPUT.build/, which get their names when they are complete; at the end they are put after each
// other. So a build that was killed continues with the shards that are missing, and the bytes that come out depend
// neither on the workers nor on how often it was stopped. Nothing exists under the final name before everything has
// been written. The tokenizer goes with the data, in OUTPUT.tokenizer/ (trainer/data/text/tokenizer_files.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files/output_check.h"
#include "trainer/data/text/dataset_info.h"

namespace concord {

struct BuildArguments {
  // .txt, .jsonl and files of records (trainer/data/text/records.h), folders and patterns of them, in order. Records
  // are first written to OUTPUT.build/ as lines.
  std::vector<std::string> inputs = {};
  std::optional<DatasetInfo> dataset = {};  // what their records are called; none: as parse_json_record has it
  std::string output = {};                  // the prefix; with sft the .jsonl
  std::string tokenizer = "byte";           // or a tokenizer.json (trainer/data/text/tokenizer_process.h)
  bool append_eod = true;                   // a document ends with the tokenizer's end of document
  bool sft = false;  // lines with "messages" to lines with "input_ids" and "labels", learnt is what the assistant says
  std::string chat_template = {};           // a Jinja file; empty: the tokenizer's own
  int64_t workers = 0;                      // 0: one per core
  int64_t shard_bytes = int64_t{16} << 20;  // of input, about
  bool overwrite = false;                   // an existing output, or a build with other settings
};

struct BuildProgress {
  int64_t shards_done = 0;
  int64_t shards = 0;
  int64_t shards_kept = 0;  // of them, from an earlier build that was stopped
  int64_t bytes_done = 0;   // of input
  int64_t bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
};

// Throws ConfigError unless |output|, as in BuildArguments, can be written with its tokenizer
// (core/base/files/output_check.h).
void check_data_output(const std::string& output, const OutputRules& rules);

// Calls |report| from the calling thread: while shards are made, and once when all are. Throws ConfigError for
// what is wrong with arguments or input, std::runtime_error if the disk is full; the shards done until then are
// kept.
BuildProgress build_data(const BuildArguments& arguments, const std::function<void(const BuildProgress&)>& report);

// "12/40 shards, 192.0 of 640.0 MiB, 3.1 M tokens, 25.0 MiB/s, 18 s left".
std::string progress_line(const BuildProgress& progress, double seconds);

}  // namespace concord
