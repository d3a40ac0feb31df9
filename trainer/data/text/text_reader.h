// Splits text files into documents and parses JSON lines. Input is untrusted: every error has the file and the line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/media/media_settings.h"
#include "trainer/data/text/dataset_info.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

// Returns the position of the first byte that is not UTF-8 (overlong forms, surrogates and code points beyond U+10FFFF
// are not); nullopt if the text is valid.
std::optional<size_t> invalid_utf8(std::string_view text);

// A line of a .jsonl. Other keys are ignored.
//   kText    {"text": ...}
//   kTokens  {"input_ids": [...], "labels": [...]}: labels are aligned with the ids, kIgnoredToken for those that are
//            not trained on; without them all are
//   kSample  a sample for a tokenizer (Tokenizer::encode_samples), converted to the one format that it takes:
//            {"messages": [{"role", "content"}, ...], "tools": [...]}
//            {"conversations": [{"from", "value"}, ...], "system": ...}         ShareGPT
//            {"instruction", "input", "output", "system", "history"}            Alpaca
//            {"prompt", "completion"}                                           texts, or lists of messages
//            Conversations may have images and videos (media_parts.h).
//   kPair    two completions of a prompt, the first of which is preferred:
//            {"prompt", "chosen", "rejected"}           texts, or lists of messages; without a prompt it is their
//                                                       common prefix. Both are then samples, as above
//            {"prompt_input_ids", "chosen_input_ids", "rejected_input_ids"}     both are then tokens, as above
struct JsonRecord {
  enum class Kind { kText, kTokens, kSample, kPair };
  Kind kind = Kind::kText;
  std::string text = {};  // kText: the text; kSample: the JSON text; kPair: that of the chosen one, empty for tokens
  TokensAndLabels tokens = {};
  std::string rejected_text = {};
  TokensAndLabels rejected_tokens = {};
  double margin = 0;                     // "margin" of a pair: target margin of the chosen response
  std::vector<RecordMedium> media = {};  // kSample: those of the messages; kPair: those of the prompt
};
const char* to_string(JsonRecord::Kind kind);
// Throws ConfigError with |place| ("data.jsonl, line 7") at its start.
JsonRecord parse_json_record(std::string_view line, const std::string& place);
// Like parse_json_record() above, for a data set with its own column names.
JsonRecord parse_json_record(std::string_view line, const std::string& place,
                             const std::optional<DatasetInfo>& dataset);

// Calls |each| with every line that is not blank and its number, starting at 1.
void for_each_line(std::string_view text, const std::function<void(std::string_view line, int64_t number)>& each);

// Returns the beginning of |text| that holds its first |most| lines that are not blank; all of it if |most| is 0.
std::string_view first_lines(std::string_view text, int64_t most);

// Calls |each| with the documents of a plain text, which are separated by empty lines, without the final line break,
// and the number of their first line.
void for_each_paragraph(std::string_view text,
                        const std::function<void(std::string_view document, int64_t line)>& each);

// Returns whether |text| is UTF-8 without zero bytes, which a file system leaves in a partially written file.
bool is_valid_text(std::string_view text);
// Throws ConfigError with the line if |text|, which starts in |first_line| of |file|, is invalid.
void check_text(std::string_view text, const std::string& file, int64_t first_line);

}  // namespace concord
