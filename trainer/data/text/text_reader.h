// Text files as documents: where each begins and ends, what each line of JSON says. Hostile until parsed: every error
// names the file and the line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/text/dataset_info.h"
#include "trainer/data/text/tokenizer.h"

namespace concord {

// Position of the first byte that is not UTF-8 (too long forms, surrogates and beyond U+10FFFF are not); none if all
// is.
std::optional<size_t> invalid_utf8(std::string_view text);

// A line of a .jsonl. Other keys are ignored.
//   kText    {"text": ...}
//   kTokens  {"input_ids": [...], "labels": [...]}: labels are aligned with the ids, kIgnoredToken for those that are
//            not trained on; without them all are
//   kSample  what a tokenizer makes a sample of (Tokenizer::encode_samples), in the one form that it takes:
//            {"messages": [{"role", "content"}, ...], "tools": [...]}
//            {"conversations": [{"from", "value"}, ...], "system": ...}         ShareGPT
//            {"instruction", "input", "output", "system", "history"}            Alpaca
//            {"prompt", "completion"}                                           texts, or lists of messages
//   kPair    two completions of a prompt, the first of which is preferred:
//            {"prompt", "chosen", "rejected"}           texts, or lists of messages; without a prompt it is what both
//                                                       begin with. Both are then samples, as above
//            {"prompt_input_ids", "chosen_input_ids", "rejected_input_ids"}     both are then tokens, as above
struct JsonRecord {
  enum class Kind { kText, kTokens, kSample, kPair };
  Kind kind = Kind::kText;
  std::string text = {};  // of kText; of kSample the JSON text; of kPair that of the chosen one, empty for tokens
  TokensAndLabels tokens = {};
  std::string rejected_text = {};
  TokensAndLabels rejected_tokens = {};
  double margin = 0;  // of a pair: "margin", by how much the chosen one is to be better
};
const char* to_string(JsonRecord::Kind kind);
// |place| ("data.jsonl, line 7") begins the message of the ConfigError.
JsonRecord parse_json_record(std::string_view line, const std::string& place);
// Of a data set that has names of its own.
JsonRecord parse_json_record(std::string_view line, const std::string& place,
                             const std::optional<DatasetInfo>& dataset);

// Calls |each| with every line that is not blank and its number, counted from 1.
void for_each_line(std::string_view text, const std::function<void(std::string_view line, int64_t number)>& each);

// Documents of a plain text: the parts between empty lines, without the line break that ends it. |each| also gets the
// number of the first line.
void for_each_paragraph(std::string_view text,
                        const std::function<void(std::string_view document, int64_t line)>& each);

// UTF-8 without zero bytes, which are what a file system leaves of a file that was being written.
bool is_valid_text(std::string_view text);
// Throws ConfigError with the line if |text|, which begins in |first_line| of |file|, is invalid.
void check_text(std::string_view text, const std::string& file, int64_t first_line);

}  // namespace concord
