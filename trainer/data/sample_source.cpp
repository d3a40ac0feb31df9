#include "trainer/data/sample_source.h"

#include <fmt/core.h>

#include <filesystem>

#include "core/config_error.h"
#include "trainer/data/gpt_source.h"
#include "trainer/data/indexed_dataset.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/row_source.h"
#include "trainer/data/text_reader.h"

namespace concord {
namespace {

void need_byte_tokenizer(const DataArguments& arguments) {
  if (arguments.tokenizer == "byte") return;
  throw ConfigError(
      fmt::format("{} is text, which training reads with the tokenizer 'byte' only; make tokens of it first: "
                  "concord data build --input {} --tokenizer {} --output PREFIX",
                  arguments.path, arguments.path, arguments.tokenizer));
}

std::unique_ptr<SampleSource> text_source(std::unique_ptr<TextDocuments> documents, const DataArguments& arguments) {
  if (documents->size() == 0) throw ConfigError(arguments.path + ": there is no text in it");
  return std::make_unique<GptSource>(std::move(documents), arguments);
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

std::unique_ptr<SampleSource> open_text(const DataArguments& arguments) {
  need_byte_tokenizer(arguments);
  const MappedFile file(arguments.path);
  check_utf8(file.text(), arguments.path, 1);
  auto documents = std::make_unique<TextDocuments>(arguments.path);
  for_each_paragraph(file.text(), [&](std::string_view text, int64_t line) { documents->add(text, line); });
  return text_source(std::move(documents), arguments);
}

std::unique_ptr<SampleSource> open_jsonl(const DataArguments& arguments) {
  const MappedFile file(arguments.path);
  auto documents = std::make_unique<TextDocuments>(arguments.path);
  auto rows = std::make_unique<RowSource>(arguments.path, arguments);
  ByteTokenizer tokenizer;
  for_each_line(file.text(), [&](std::string_view line, int64_t number) {
    const std::string place = fmt::format("line {}", number), full_place = arguments.path + ", " + place;
    const JsonRecord record = parse_json_record(line, full_place);
    const bool is_text = record.kind == JsonRecord::Kind::kText;
    if (is_text ? rows->size() > 0 : documents->size() > 0) {
      throw ConfigError(fmt::format(
          "{}: has \"{}\" where the lines before have another kind; text and samples go into files of their own",
          full_place, to_string(record.kind)));
    }
    if (record.kind == JsonRecord::Kind::kTokens) return rows->add(record.tokens, place);
    need_byte_tokenizer(arguments);
    if (is_text) return documents->add(record.text, number);
    try {
      rows->add(encode_chat(render_chat(arguments.chat_template, record.messages), tokenizer), place);
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      throw ConfigError(text.starts_with(arguments.path) ? text : full_place + ": " + text);
    }
  });
  if (documents->size() > 0) return text_source(std::move(documents), arguments);
  rows->finish();
  return rows;
}

std::unique_ptr<SampleSource> open_sample_source(const DataArguments& arguments) {
  const std::string& path = arguments.path;
  if (path.empty())
    throw ConfigError("no data was given; --train_data takes a Megatron prefix, .jsonl, .txt or .safetensors");
  if (path.ends_with(".jsonl")) return open_jsonl(arguments);
  if (path.ends_with(".txt")) return open_text(arguments);
  if (path.ends_with(".safetensors")) return open_safetensors(arguments);
  std::string prefix = path;
  if (path.ends_with(".bin") || path.ends_with(".idx")) prefix.resize(prefix.size() - 4);
  if (!is_file(prefix + ".idx") && !is_file(prefix + ".bin")) {
    throw ConfigError(
        fmt::format("cannot read {}: there is no {}.idx, and the name ends in none of .jsonl, .txt and .safetensors",
                    path, prefix));
  }
  return std::make_unique<GptSource>(std::make_unique<IndexedDataset>(prefix), arguments);
}

}  // namespace concord
