// Any bytes as lines of a .jsonl: either rejected with a ConfigError that has the line, or a record of one kind.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "tests/fuzz/check.h"
#include "trainer/data/text/text_reader.h"
#include "trainer/data/token_batch.h"

namespace concord::fuzz {
namespace {

constexpr const char* kPlace = "fuzz.jsonl, line 3";

void check_record(const JsonRecord& record) {
  check(record.tokens.ids.size() == record.tokens.labels.size(), "every id has a label");
  check((record.kind == JsonRecord::Kind::kTokens) == !record.tokens.ids.empty(), "samples have tokens");
  if (record.kind == JsonRecord::Kind::kSample) {
    const nlohmann::json sample = nlohmann::json::parse(record.text);
    check(sample.contains("messages") || sample.contains("completion"), "a sample is what a tokenizer takes");
  }
  check(!invalid_utf8(record.text), "text is UTF-8");
  for (const int64_t id : record.tokens.ids) check(id >= 0 && id <= INT32_MAX, "an id is one");
  for (const int64_t label : record.tokens.labels) check(label >= 0 || label == kIgnoredToken, "a label is one");
}

}  // namespace
}  // namespace concord::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for_each_line(text, [](std::string_view line, int64_t) {
    try {
      fuzz::check_record(parse_json_record(line, fuzz::kPlace));
    } catch (const ConfigError& error) {
      fuzz::check_error(error.what(), fuzz::kPlace);
    }
  });
  size_t paragraphs = 0;
  for_each_paragraph(text, [&](std::string_view document, int64_t) { paragraphs += document.size(); });
  fuzz::check(paragraphs <= text.size(), "documents do not overlap");
  return 0;
}
