#include "trainer/data/sources/sample_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/base/config_error.h"
#include "trainer/data/build/content_hash.h"
#include "trainer/data/data_files.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/media/media_set.h"
#include "trainer/data/media/media_source.h"
#include "trainer/data/sources/blend.h"
#include "trainer/data/sources/gpt_source.h"
#include "trainer/data/sources/indexed_dataset.h"
#include "trainer/data/sources/row_source.h"
#include "trainer/data/sources/split.h"
#include "trainer/data/text/pair_reader.h"
#include "trainer/data/text/records.h"
#include "trainer/data/text/text_reader.h"
#include "trainer/data/text/token_cache.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {
namespace {

constexpr const char* kNeedsCache =
    "has images or videos, which are converted in the token cache, by the processor in the folder of a model with "
    "images; set data_cache_path to a folder, or run concord data build --sft --images";

std::unique_ptr<Tokenizer> tokenizer_of(const DataArguments& arguments) {
  const std::string& path = arguments.path;
  if (arguments.tokenizer.empty()) {
    throw ConfigError(
        fmt::format("{} is text, but the model's folder has no tokenizer.json to tokenize it; add the model's "
                    "tokenizer, pass one with --tokenizer FILE, or use --tokenizer byte for one token per byte",
                    path));
  }
  try {
    return make_tokenizer(arguments.tokenizer, arguments.chat_template);
  } catch (const ConfigError& error) {
    throw ConfigError(
        fmt::format("{} is text and must be tokenized: {}. If that is not possible on this machine, tokenize it "
                    "elsewhere: concord data build --input {} --tokenizer {} --output PREFIX",
                    path, error.what(), path, arguments.tokenizer));
  }
}

std::unique_ptr<SampleSource> text_source(std::unique_ptr<TextDocuments> documents, const DataArguments& arguments) {
  documents->finish();
  if (documents->size() == 0) throw ConfigError(arguments.path + ": contains no text");
  return std::make_unique<GptSource>(part_of(std::move(documents), arguments), arguments);
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

std::unique_ptr<SampleSource> open_text(const DataArguments& arguments) {
  const MappedFile file(arguments.path);
  check_text(file.text(), arguments.path, 1);
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(arguments);
  auto documents = std::make_unique<TextDocuments>(arguments.path, *tokenizer);
  for_each_paragraph(file.text(),
                     [&](std::string_view text, int64_t line) { documents->add(std::string(text), line); });
  return text_source(std::move(documents), arguments);
}

std::unique_ptr<SampleSource> open_jsonl(const DataArguments& arguments) {
  return open_lines(MappedFile(arguments.path).text(), arguments);
}

namespace {

std::unique_ptr<SampleSource> open_pairs(std::string_view text, const DataArguments& arguments) {
  std::unique_ptr<Tokenizer> tokenizer;
  auto rows = std::make_unique<RowSource>(arguments.path, arguments);
  const auto line_of = [](int64_t number) { return fmt::format("line {}", number); };
  const auto refuse = [&](int64_t number, const std::string& why) {
    throw ConfigError(fmt::format("{}, {}: {}", arguments.path, line_of(number), why));
  };
  const auto the_tokenizer = [&]() -> Tokenizer& {
    tokenizer = tokenizer_of(arguments);
    return *tokenizer;
  };
  const auto add = [&](const PairReader::Pair& pair, int64_t number) { rows->add(pair, line_of(number)); };
  PairReader pairs(the_tokenizer, add, refuse);
  for_each_line(text, [&](std::string_view line, int64_t number) {
    JsonRecord record = parse_json_record(line, arguments.path + ", " + line_of(number), arguments.dataset);
    if (record.kind != JsonRecord::Kind::kPair) {
      refuse(number, fmt::format("has \"{}\", but stages dpo and rm train on pairs: {{\"prompt\": ..., \"chosen\": "
                                 "..., \"rejected\": ...}}, as texts or lists of messages",
                                 to_string(record.kind)));
    }
    if (!record.media.empty()) refuse(number, kNeedsCache);
    pairs.add(std::move(record), number);
  });
  pairs.finish();
  rows->finish();
  return part_of(std::move(rows), arguments);
}

}  // namespace

std::unique_ptr<SampleSource> open_lines(std::string_view all, const DataArguments& arguments) {
  const std::string_view text = first_lines(all, arguments.max_samples);
  if (arguments.pairs) return open_pairs(text, arguments);
  std::unique_ptr<Tokenizer> tokenizer;  // created when a line needs it; ids do not
  std::unique_ptr<TextDocuments> documents;
  auto rows = std::make_unique<RowSource>(arguments.path, arguments);
  std::optional<BatchedSamples> samples;
  const auto line_of = [](int64_t number) { return fmt::format("line {}", number); };
  const auto add_row = [&](const TokensAndLabels& tokens, int64_t number) { rows->add(tokens, line_of(number)); };
  const auto refuse = [&](int64_t number, const std::string& why) {
    throw ConfigError(fmt::format("{}, {}: {}", arguments.path, line_of(number), why));
  };
  for_each_line(text, [&](std::string_view line, int64_t number) {
    const std::string place = line_of(number), full_place = arguments.path + ", " + place;
    JsonRecord record = parse_json_record(line, full_place, arguments.dataset);
    if (record.kind == JsonRecord::Kind::kPair) {
      refuse(number, "has \"chosen\" and \"rejected\", which are a preference pair; set stage: dpo or stage: rm");
    }
    const bool is_text = record.kind == JsonRecord::Kind::kText;
    if (is_text ? rows->size() > 0 || samples : documents != nullptr) {
      throw ConfigError(fmt::format(
          "{}: has \"{}\", but the previous lines have another kind; put text and samples into separate files",
          full_place, to_string(record.kind)));
    }
    if (record.kind == JsonRecord::Kind::kTokens) {
      if (samples) samples->finish();  // keeps the rows in the order of lines
      return rows->add(record.tokens, place);
    }
    if (!record.media.empty()) refuse(number, kNeedsCache);
    if (!tokenizer) tokenizer = tokenizer_of(arguments);
    if (is_text) {
      if (!documents) documents = std::make_unique<TextDocuments>(arguments.path, *tokenizer);
      return documents->add(std::move(record.text), number);
    }
    if (!samples) samples.emplace(*tokenizer, add_row, refuse);
    samples->add(std::move(record.text), number);
  });
  if (samples) samples->finish();
  if (documents) return text_source(std::move(documents), arguments);
  rows->finish();
  return part_of(std::move(rows), arguments);
}

namespace {

// The ids in the cache are final: columns have been renamed, and positions are those of records.
std::unique_ptr<SampleSource> open_cached(const DataArguments& arguments) {
  const std::string tokens = tokens_in_cache(arguments);
  DataArguments built = arguments;
  built.dataset.reset();
  if (is_media_set(tokens)) return open_media(tokens, built);
  if (tokens.ends_with(".jsonl")) return open_lines(MappedFile(tokens).text(), built);
  if (arguments.pairs) throw ConfigError(fmt::format("{} is text; stages dpo and rm train on pairs", arguments.path));
  return std::make_unique<GptSource>(part_of(std::make_unique<IndexedDataset>(tokens), built), built);
}

}  // namespace

DataIdentity SampleSource::identity() const {
  constexpr int64_t kLengths = 1024;  // evenly spaced
  ContentHash hash;
  for (int64_t i = 0; i < std::min(kLengths, size()); ++i) {
    hash.add(static_cast<uint64_t>(length(i * std::max<int64_t>(1, size() / kLengths))));
  }
  return {{"samples", std::to_string(size())}, {"lengths", fmt::format("{:016x}", hash.value())}};
}

std::unique_ptr<SampleSource> open_sample_source(const DataArguments& arguments) {
  if (!arguments.blend.empty()) return open_blend(arguments);
  const std::string& path = arguments.path;
  if (path.empty()) {
    throw ConfigError(
        "no data; --train_data takes a Megatron prefix, .jsonl, .txt, .safetensors, .json, .jsonl.gz, .jsonl.zst, "
        ".jsonl.xz, .parquet or .arrow, or a folder or pattern of them");
  }
  if (is_media_set(path)) return open_media(path, arguments);
  if (uses_token_cache(arguments)) return open_cached(arguments);
  if (is_several_files(path)) {
    data_files(path);  // throws if there is none
    throw ConfigError(
        fmt::format("{} is several files, which are tokenized into a cache: they need a tokenizer, and data_cache_path "
                    "that is not none",
                    path));
  }
  if (path.ends_with(".jsonl")) return open_jsonl(arguments);
  if (is_record_file(path)) return open_lines(read_records(path), arguments);
  if (path.ends_with(".safetensors") && is_media_file(path)) return open_media(path, arguments);
  if (arguments.pairs) {
    throw ConfigError(
        fmt::format("{}: stages dpo and rm train on pairs in a .jsonl, .json, .jsonl.gz, .parquet or "
                    ".arrow file",
                    path));
  }
  if (path.ends_with(".txt")) return open_text(arguments);
  if (path.ends_with(".safetensors")) return open_safetensors(arguments);
  std::string prefix = path;
  if (path.ends_with(".bin") || path.ends_with(".idx")) prefix.resize(prefix.size() - 4);
  if (!is_file(prefix + ".idx") && !is_file(prefix + ".bin")) {
    throw ConfigError(
        fmt::format("cannot read {}: {}.idx does not exist, and the name does not end in .jsonl, .txt, .safetensors, "
                    ".json, .jsonl.gz, .parquet or .arrow",
                    path, prefix));
  }
  return std::make_unique<GptSource>(part_of(std::make_unique<IndexedDataset>(prefix), arguments), arguments);
}

}  // namespace concord
