#include "trainer/data/build/build_shards.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/config_error.h"
#include "trainer/data/build/build_media.h"
#include "trainer/data/build/output_file.h"
#include "trainer/data/media/media_file.h"
#include "trainer/data/sources/indexed_dataset.h"
#include "trainer/data/text/pair_reader.h"
#include "trainer/data/text/text_reader.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

bool is_jsonl(const std::string& path) { return path.ends_with(".jsonl"); }

// Returns the first document boundary at or after |from|.
int64_t boundary(std::string_view text, int64_t from, bool jsonl) {
  if (from >= static_cast<int64_t>(text.size())) return static_cast<int64_t>(text.size());
  const size_t found = text.find(jsonl ? "\n" : "\n\n", static_cast<size_t>(from));
  return static_cast<int64_t>(found == std::string_view::npos ? text.size() : found + (jsonl ? 1 : 2));
}

int64_t line_of(const BuildInput& input, int64_t byte) {
  return 1 + std::count(input.file.data(), input.file.data() + byte, '\n');
}

// Writes documents in order.
class DocumentWriter {
 public:
  DocumentWriter(const BuildArguments& arguments, Tokenizer& tokenizer, const std::string& name)
      : writer_(name, token_type_for(tokenizer.vocab_size())),
        encoder_(tokenizer, [this, &tokenizer, append_eod = arguments.append_eod](std::vector<int64_t> ids) {
          if (append_eod) ids.push_back(tokenizer.end_of_document().value());
          if (ids.empty()) return;
          writer_.add_sequence(ids);
          writer_.end_document();
        }) {}

  void add(std::string text) { encoder_.add(std::move(text)); }

  ShardCounts finish() {
    encoder_.finish();
    writer_.finish();
    return {writer_.documents(), writer_.tokens()};
  }

 private:
  IndexedWriter writer_;
  BatchedEncoder encoder_;
};

ShardCounts build_documents(const BuildArguments& arguments, const BuildInput& input, const BuildShard& shard,
                            Tokenizer& tokenizer, const std::string& name) {
  const std::string_view text =
      input.file.text().substr(static_cast<size_t>(shard.begin), static_cast<size_t>(shard.end - shard.begin));
  const auto place = [&](int64_t line) {
    return fmt::format("{}, line {}", input.name, line_of(input, shard.begin) + line - 1);
  };
  DocumentWriter writer(arguments, tokenizer, name);
  if (!is_jsonl(input.file.path())) {
    if (!is_valid_text(text)) check_text(text, input.name, line_of(input, shard.begin));
    for_each_paragraph(text, [&](std::string_view document, int64_t) { writer.add(std::string(document)); });
    return writer.finish();
  }
  for_each_line(text, [&](std::string_view line, int64_t number) {
    JsonRecord record;
    try {
      record = parse_json_record(line, "", arguments.dataset);
      if (record.kind != JsonRecord::Kind::kText) {
        throw ConfigError(fmt::format(": has \"{}\"; a corpus needs lines with \"text\" (\"messages\" need --sft)",
                                      to_string(record.kind)));
      }
    } catch (const ConfigError& error) {  // counting the preceding lines is slow, so it is done only here
      throw ConfigError(place(number) + error.what());
    }
    writer.add(std::move(record.text));
  });
  return writer.finish();
}

std::string sample_line(const TokensAndLabels& tokens) {
  return fmt::format("{{\"input_ids\":[{}],\"labels\":[{}]}}\n", fmt::join(tokens.ids, ","),
                     fmt::join(tokens.labels, ","));
}

std::string pair_line(const PairReader::Pair& pair) {
  const auto is_learnt = [](int64_t label) { return label != kIgnoredToken; };
  const TokensAndLabels &chosen = pair.chosen, &rejected = pair.rejected;
  const auto begin =
      std::ranges::find_if(chosen.labels, is_learnt) - chosen.labels.begin();  // start of both completions
  const auto part = [](const auto& first, const auto& last) { return fmt::format("{}", fmt::join(first, last, ",")); };
  return fmt::format("{{\"prompt_input_ids\":[{}],\"chosen_input_ids\":[{}],\"rejected_input_ids\":[{}]{}}}\n",
                     part(chosen.ids.begin(), chosen.ids.begin() + begin),
                     part(chosen.ids.begin() + begin, chosen.ids.end()),
                     part(rejected.ids.begin() + begin, rejected.ids.end()),
                     pair.margin == 0 ? "" : fmt::format(",\"margin\":{}", pair.margin));
}

ShardCounts build_conversations(const BuildArguments& arguments, const BuildInput& input, const BuildShard& shard,
                                Tokenizer& tokenizer, const std::string& name) {
  const std::string_view text =
      input.file.text().substr(static_cast<size_t>(shard.begin), static_cast<size_t>(shard.end - shard.begin));
  OutputFile output(name + ".jsonl");
  ShardCounts counts;
  const auto fail = [&](int64_t number, const std::string& why) {
    throw ConfigError(fmt::format("{}, line {}: {}", input.name, line_of(input, shard.begin) + number - 1, why));
  };
  std::optional<bool> are_pairs;
  const auto write = [&](const std::string& line, size_t tokens) {
    output.write(line);
    ++counts.documents;
    counts.tokens += static_cast<int64_t>(tokens);
  };
  BatchedSamples samples(
      tokenizer, [&](const TokensAndLabels& tokens, int64_t) { write(sample_line(tokens), tokens.ids.size()); }, fail);
  PairReader pairs([&]() -> Tokenizer& { return tokenizer; },
                   [&](const PairReader::Pair& pair, int64_t) {
                     write(pair_line(pair), pair.chosen.ids.size() + pair.rejected.ids.size());
                   },
                   fail);
  for_each_line(text, [&](std::string_view line, int64_t number) {
    JsonRecord record;
    try {
      record = parse_json_record(line, "", arguments.dataset);
    } catch (const ConfigError& error) {
      fail(number, std::string(error.what()).substr(2));  // without the ": " after an empty location
    }
    if (record.kind == JsonRecord::Kind::kTokens) {  // tokenized already
      samples.finish();
      return write(sample_line(record.tokens), record.tokens.ids.size());
    }
    if (!record.media.empty()) {
      fail(number, "has images or videos; use --images, with the folder of the model as --tokenizer");
    }
    const bool is_pair = record.kind == JsonRecord::Kind::kPair;
    if (!is_pair && record.kind != JsonRecord::Kind::kSample) {
      fail(number, fmt::format("has \"{}\"; --sft needs conversations, prompts with completions, or pairs",
                               to_string(record.kind)));
    }
    if (are_pairs.value_or(is_pair) != is_pair) {
      fail(number, "there are pairs to learn preferences from, and others; put them into separate files");
    }
    are_pairs = is_pair;
    if (is_pair) return pairs.add(std::move(record), number);
    samples.add(std::move(record.text), number);
  });
  pairs.finish();
  samples.finish();
  output.sync();
  output.publish();
  return counts;
}

}  // namespace

ShardTools make_tools(const BuildArguments& arguments) {
  ShardTools tools{.tokenizer = make_tokenizer(arguments.tokenizer, arguments.chat_template), .media = nullptr};
  if (!arguments.media.processor.empty()) tools.media = std::make_unique<MediaProcessor>(arguments.media);
  return tools;
}

std::vector<BuildShard> cut_into_shards(const std::deque<BuildInput>& inputs, int64_t shard_bytes) {
  std::vector<BuildShard> shards;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& path = inputs[i].file.path();
    for (int64_t begin = 0; begin < inputs[i].file.size();) {
      const int64_t end = boundary(inputs[i].file.text(), begin + shard_bytes - 1, is_jsonl(path));
      shards.push_back({i, begin, end});
      begin = end;
    }
  }
  return shards;
}

ShardCounts build_shard(const BuildArguments& arguments, const BuildInput& input, const BuildShard& shard,
                        const ShardTools& tools, const std::string& name) {
  if (tools.media) return build_media_piece(arguments, input, shard, *tools.tokenizer, *tools.media, name);
  return (arguments.sft ? build_conversations : build_documents)(arguments, input, shard, *tools.tokenizer, name);
}

ShardCounts count_shard(const BuildArguments& arguments, const std::string& name) {
  if (!arguments.sft) {
    const IndexedDataset data(name);
    return {data.documents(), data.tokens()};
  }
  if (!arguments.media.processor.empty()) {
    const MediaFile file(name + ".safetensors");
    return {file.samples() / (file.has_pairs() ? 2 : 1), file.tokens()};
  }
  ShardCounts counts;
  const MappedFile file(name + ".jsonl");
  for_each_line(file.text(), [&](std::string_view line, int64_t) {
    ++counts.documents;
    const JsonRecord record = parse_json_record(line, name);
    counts.tokens += static_cast<int64_t>(record.tokens.ids.size() + record.rejected_tokens.ids.size());
  });
  return counts;
}

void join_shards(const BuildArguments& arguments, const std::vector<std::string>& names, const Tokenizer& tokenizer) {
  if (!arguments.sft) {
    IndexedWriter writer(arguments.output, token_type_for(tokenizer.vocab_size()));
    for (const std::string& name : names) writer.append(IndexedDataset(name));
    writer.finish();
    return;
  }
  OutputFile output(arguments.output);
  for (const std::string& name : names) output.write(MappedFile(name + ".jsonl").text());
  output.sync();
  output.publish();
}

}  // namespace concord
