#include "trainer/data/text/text_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "trainer/data/testing/folder.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

using testing::config_error;
using ::testing::HasSubstr;

std::string said_of_line(std::string_view line) {
  return config_error([&] { parse_json_record(line, "f.jsonl, line 3"); });
}

TEST(TextReader, WellFormedUtf8IsAccepted) {
  EXPECT_FALSE(invalid_utf8(""));
  EXPECT_FALSE(invalid_utf8("plain ASCII that is longer than eight bytes"));
  EXPECT_FALSE(invalid_utf8("na\u00efve \u6771\u4eac \U0001F600 \uffff \U0010FFFF \u0800 \u007f \u0080"));
}

TEST(TextReader, MalformedUtf8IsFoundWhereItBegins) {
  const std::vector<std::string> wrong = {"\x80",
                                          "\xC0\x80",
                                          "\xC1\xBF",
                                          "\xE0\x9F\xBF",
                                          "\xED\xA0\x80",
                                          "\xF0\x8F\xBF\xBF",
                                          "\xF4\x90\x80\x80",
                                          "\xF5\x80\x80\x80",
                                          "\xFF",
                                          "\xE6\x9D",
                                          "\xC3",
                                          "\xF0\x9F\x98"};
  for (const std::string& bytes : wrong) {
    EXPECT_EQ(invalid_utf8(bytes), std::optional<size_t>(0));
    EXPECT_EQ(invalid_utf8("0123456789" + bytes), std::optional<size_t>(10));
    EXPECT_EQ(invalid_utf8("\u00e9" + bytes + "more text behind it"), std::optional<size_t>(2));
  }
}

TEST(TextReader, InvalidUtf8IsNamedWithItsLine) {
  EXPECT_THAT(config_error([] { check_text("one\ntwo\n\xFFthree", "a.txt", 5); }),
              HasSubstr("a.txt, line 7: the byte 0xFF is not valid UTF-8"));
}

TEST(TextReader, ParagraphsAreWhatStandsBetweenEmptyLines) {
  std::vector<std::pair<std::string, int64_t>> documents;
  for_each_paragraph("\n\nfirst\nline two\n\n \t\nsecond\r\n\r\n\nthird",
                     [&](std::string_view text, int64_t line) { documents.emplace_back(text, line); });
  EXPECT_EQ(documents,
            (std::vector<std::pair<std::string, int64_t>>{{"first\nline two", 3}, {"second\r", 7}, {"third", 10}}));
}

TEST(TextReader, BlankLinesAreCountedAndLeftOut) {
  std::vector<std::pair<std::string, int64_t>> lines;
  for_each_line("a\n\n  \nb", [&](std::string_view line, int64_t number) { lines.emplace_back(line, number); });
  EXPECT_EQ(lines, (std::vector<std::pair<std::string, int64_t>>{{"a", 1}, {"b", 4}}));
}

TEST(TextReader, EachKindOfRecordIsUnderstood) {
  EXPECT_EQ(parse_json_record(R"({"text": "h\u00e9", "meta": 1})", "").text, "h\u00e9");
  const JsonRecord tokens = parse_json_record(R"({"input_ids": [1, 2], "labels": [-100, 2]})", "");
  EXPECT_EQ(tokens.kind, JsonRecord::Kind::kTokens);
  EXPECT_EQ(tokens.tokens.ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(tokens.tokens.labels, (std::vector<int64_t>{kIgnoredToken, 2}));
  EXPECT_EQ(parse_json_record(R"({"input_ids": [1, 2]})", "").tokens.labels, (std::vector<int64_t>{1, 2}));
}

std::string sample(std::string_view line) {
  const JsonRecord record = parse_json_record(line, "");
  EXPECT_EQ(record.kind, JsonRecord::Kind::kSample);
  return record.text;
}

TEST(TextReader, ConversationsOfEveryKindBecomeMessages) {
  const std::string plain = R"({"messages":[{"content":"hi","role":"user"},{"content":"ho","role":"assistant"}]})";
  EXPECT_EQ(sample(plain), plain);
  EXPECT_EQ(sample(R"({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}], "id": 3})"),
            plain);
  EXPECT_EQ(sample(R"({"instruction": "hi", "input": "", "output": "ho"})"), plain);
  EXPECT_EQ(sample(R"({"instruction": "hi", "input": "you", "output": "ho", "system": "S", "history": [["a", "b"]]})"),
            R"({"messages":[{"content":"S","role":"system"},{"content":"a","role":"user"},)"
            R"({"content":"b","role":"assistant"},{"content":"hi\nyou","role":"user"},)"
            R"({"content":"ho","role":"assistant"}]})");
  EXPECT_EQ(sample(R"({"system": "S", "conversations": [{"from": "observation", "value": "o"}], "tools": [{"n": 1}]})"),
            R"({"messages":[{"content":"S","role":"system"},{"content":"o","role":"tool"}],"tools":[{"n":1}]})");
  EXPECT_EQ(sample(R"({"text": null, "messages": null, "prompt": "a", "completion": "b"})"),
            R"({"completion":"b","prompt":"a"})");
  EXPECT_EQ(sample(R"({"prompt": "a", "completion": "b", "score": 1})"), R"({"completion":"b","prompt":"a"})");
  EXPECT_EQ(sample(R"({"prompt": [{"role": "user", "content": "hi"}],
                       "completion": [{"role": "assistant", "content": "ho"}]})"),
            R"({"learn_from":1,)" + plain.substr(1));
}

// A completion without its prompt is an ignored key, since the record has no value for the other key.
TEST(TextReader, HalfOfAnotherKindIsIgnored) {
  const std::string plain = R"({"messages":[{"content":"hi","role":"user"},{"content":"ho","role":"assistant"}]})";
  EXPECT_EQ(sample(R"({"completion": "c", )" + plain.substr(1)), plain);
  EXPECT_EQ(sample(R"({"completion": ["c"], "conversations": [{"from": "human", "value": "hi"},
                       {"from": "gpt", "value": "ho"}]})"),
            plain);
  EXPECT_EQ(sample(R"({"completion": "c", "prompt": null, "instruction": "hi", "output": "ho"})"), plain);
}

TEST(TextReader, MediaBecomePartsOfMessages) {
  const auto taken = [](std::string_view line) {
    const JsonRecord record = parse_json_record(line, "f.jsonl, line 3");
    return std::pair(nlohmann::json::parse(record.text)["messages"][0]["content"].dump(), record.media);
  };
  using Taken = std::pair<std::string, std::vector<RecordMedium>>;
  EXPECT_EQ(
      taken(R"({"messages": [{"role": "user", "content": "a<image>b<image>"}], "images": ["x.png", {"path": "y"}]})"),
      Taken(R"([{"text":"a","type":"text"},{"type":"image"},{"text":"b","type":"text"},{"type":"image"}])",
            {{false, "\"x.png\""}, {false, R"({"path":"y"})"}}));
  EXPECT_EQ(taken(R"({"messages": [{"role": "user", "content": "a<image>"}]})"), Taken("\"a<image>\"", {}));
  EXPECT_EQ(taken(R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}},
                       {"type": "image"}, {"type": "text", "text": "<image>"}]}], "images": ["x", "y"]})"),
            Taken(R"([{"type":"image"},{"type":"image"},{"type":"image"}])",
                  {{false, R"({"url":"u"})"}, {false, "\"x\""}, {false, "\"y\""}}));
  EXPECT_EQ(taken(R"({"messages": [{"role": "user", "content": "<video><image><video>b"}], "images": "i",
                      "videos": ["v.mp4", ["0.png", "1.png"]]})"),
            Taken(R"([{"type":"video"},{"type":"image"},{"type":"video"},{"text":"b","type":"text"}])",
                  {{true, "\"v.mp4\""}, {false, "\"i\""}, {true, R"(["0.png","1.png"])"}}));
  EXPECT_EQ(taken(R"({"messages": [{"role": "user", "content": [{"type": "video", "video": ["0.png"]},
                       {"type": "video_url", "video_url": {"url": "v"}}, {"type": "text", "text": "<video>"}]}]})"),
            Taken(R"([{"type":"video"},{"type":"video"},{"text":"<video>","type":"text"}])",
                  {{true, R"(["0.png"])"}, {true, R"({"url":"v"})"}}));
}

TEST(TextReader, BothAnswersHaveTheMediaOfThePrompt) {
  const JsonRecord pair = parse_json_record(
      R"({"prompt": [{"role": "user", "content": "<image>a"}], "chosen": [{"role": "assistant", "content": "b"}],
          "rejected": [{"role": "assistant", "content": "c"}], "images": ["x.png"]})",
      "f.jsonl, line 3");
  const std::string prompt = R"({"content":[{"type":"image"},{"text":"a","type":"text"}],"role":"user"})";
  EXPECT_THAT(pair.media, ::testing::ElementsAre(RecordMedium{false, "\"x.png\""}));
  EXPECT_THAT(pair.text, HasSubstr(prompt));
  EXPECT_THAT(pair.rejected_text, HasSubstr(prompt));
}

TEST(TextReader, BadLinesAreRefusedWithPlaceAndReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "not JSON"},
      {"{\"text\": \"\xFF\"}", "not JSON"},
      {std::string("{\"text\": \"a\"}\0{}", 17), "not JSON: byte 13 is 0"},
      {"[]", "not a JSON object"},
      {"{}", "must have exactly one kind"},
      {R"({"text": "a", "input_ids": [1]})", "must have exactly one kind"},
      {R"({"text": 5})", "\"text\" is not a string"},
      {R"({"input_ids": 5})", "not a list"},
      {R"({"input_ids": []})", "is empty"},
      {R"({"input_ids": [1, 2.5]})", "\"input_ids\"[1] is 2.5"},
      {R"({"input_ids": [1, "a"]})", "\"input_ids\"[1] is \"a\""},
      {R"({"input_ids": [-1]})", "\"input_ids\"[0] is -1"},
      {R"({"input_ids": [18446744073709551615]})", "18446744073709551615, not a token id"},
      {R"({"input_ids": [1e30]})", "not a token id"},
      {R"({"input_ids": [1, 2], "labels": [1]})", "1 entries, but \"input_ids\" has 2"},
      {R"({"input_ids": [1], "labels": [-1]})", "\"labels\"[0] is -1"},
      {R"({"messages": []})", "not a list of messages"},
      {R"({"messages": [{"role": "user"}]})", "message 0 has no string \"content\""},
      {R"({"messages": [{"role": "user", "content": "<image>"}], "images": ["a.png", "b.png"]})",
       "has 2 images, but its messages have 1 placeholders"},
      {R"({"messages": [{"role": "user", "content": "<image><image>"}], "images": ["a.png"]})",
       "has 1 images, but its messages have 2"},
      {R"({"messages": [{"role": "user", "content": "<video>"}], "videos": ["a.mp4", "b.mp4"]})",
       "has 2 videos, but its messages have 1 placeholders <video>"},
      {R"({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]})",
       "has 0 videos, but its messages have 1"},
      {R"({"messages": [{"role": "user", "content": "a"}], "audios": ["a.wav"]})",
       "no model with audio can be trained"},
      {R"({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]})",
       "has a part of type 'input_audio', but no model with audio"},
      {R"({"prompt": "<image>", "chosen": "a", "rejected": "b", "images": ["a.png"]})",
       "has images, which are part of a message; give the texts as lists of messages"},
      {R"({"prompt": "a", "chosen": "a", "rejected": "b", "rejected_images": ["a.png"]})",
       "has \"rejected_images\", but both answers"},
      {R"({"messages": ["hello"]})", "message 0 has no string \"role\""},
      {R"({"messages": [{"role": "user", "content": 5}]})", "message 0 has no string \"content\""},
      {R"({"conversations": [{"from": "nobody", "value": "a"}]})", "from human, gpt, system or observation"},
      {R"({"instruction": 5, "output": "a"})", "\"instruction\" is not a string"},
      {R"({"prompt": "a", "completion": []})", "\"prompt\" is not a list of messages"},
  };
  for (const auto& [line, reason] : cases) {
    EXPECT_THAT(said_of_line(line), HasSubstr(reason)) << line;
    EXPECT_THAT(said_of_line(line), HasSubstr("f.jsonl, line 3: "));
  }
}

TEST(TextReader, DeepNestingIsHarmless) {
  std::string deep(200000, '[');
  EXPECT_THAT(said_of_line("{\"text\": " + deep), HasSubstr("not JSON"));
  deep += std::string(200000, ']');
  EXPECT_THAT(said_of_line("{\"text\": " + deep + "}"), HasSubstr("not a string"));
  EXPECT_THAT(said_of_line(R"({"messages": [{"role": "user", "content": )" + deep + "}]}"), HasSubstr("nested deeper"));
  EXPECT_THAT(said_of_line("{\"input_ids\": " + deep + "}"), HasSubstr("\"input_ids\"[0] is an array, not a token id"));
}

// Deterministic mutation: a record or a ConfigError, whatever the bytes are.
TEST(TextReader, NoMutationOfALineDoesMoreThanBeRefused) {
  const std::vector<std::string> good = {
      R"({"text": "some text with \u00e9 and \"quotes\"", "meta": {"a": [1, 2]}})",
      R"({"input_ids": [1, 2, 3, 4], "labels": [-100, 2, 3, 4]})",
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})",
      R"({"messages": [{"role": "user", "content": "<image>"}, {"role": "user", "content": [{"type": "video", "video":
          ["a", "b"]}, {"type": "text", "text": "<image>"}]}], "images": ["a.png", {"path": "b"}], "videos": []})"};
  std::mt19937 random(17);
  int parsed = 0, refused = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string line = good[static_cast<size_t>(round) % good.size()];
    for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % line.size();
      switch (random() % 4) {
        case 0: line[at] = static_cast<char>(random()); break;
        case 1: line.erase(at, 1 + random() % 4); break;
        case 2: line.insert(at, 1, "[]{}\",:-0e.\\"[random() % 12]); break;
        default: line.insert(at, line.substr(random() % line.size(), 1 + random() % 8)); break;
      }
      if (line.empty()) line.push_back(' ');
    }
    const std::string why = config_error([&] {
      const JsonRecord record = parse_json_record(line, "place");
      EXPECT_EQ(record.tokens.ids.size(), record.tokens.labels.size());
      ++parsed;
    });
    refused += why.empty() ? 0 : 1;
  }
  EXPECT_EQ(parsed + refused, 6000);
  EXPECT_GT(parsed, 300);
  EXPECT_GT(refused, 3000);
}

// Returns the texts passed to the tokenizer: the prompt, a completion and the other one.
std::vector<std::string> parts_of(const std::string& sample) {
  const nlohmann::json json = nlohmann::json::parse(sample);
  const auto text = [&](const char* key) {
    return json[key].is_string() ? json[key].get<std::string>() : json[key].dump();
  };
  return {text("prompt"), text("completion"), text("other")};
}

TEST(TextReader, APairIsTwoCompletionsOfOnePrompt) {
  const auto chosen = [](std::string_view line) { return parts_of(parse_json_record(line, "f").text); };
  using Texts = std::vector<std::string>;
  const std::string_view pair = R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1.5})";
  EXPECT_EQ(parse_json_record(pair, "f").kind, JsonRecord::Kind::kPair);
  EXPECT_EQ(parse_json_record(pair, "f").margin, 1.5);
  EXPECT_EQ(chosen(pair), (Texts{"a", "b", "c"}));
  EXPECT_EQ(parts_of(parse_json_record(pair, "f").rejected_text), (Texts{"a", "c", "b"}));
  EXPECT_EQ(chosen(R"({"chosen": "it is so", "rejected": "it is not"})"), (Texts{"it is", " so", " not"}));
  // The two letters have the same first byte.
  EXPECT_EQ(chosen(R"({"chosen": "gr\u00fcn", "rejected": "gr\u00e4n"})"), (Texts{"gr", "\u00fcn", "\u00e4n"}));
  EXPECT_EQ(chosen(R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                       "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}]})"),
            (Texts{R"([{"content":"a","role":"user"}])", R"([{"content":"b","role":"assistant"}])",
                   R"([{"content":"c","role":"assistant"}])"}));
}

TEST(TextReader, APairOfTokensIsLearntAfterThePrompt) {
  const JsonRecord pair =
      parse_json_record(R"({"prompt_input_ids": [1, 2], "chosen_input_ids": [3], "rejected_input_ids": [4, 5]})", "f");
  EXPECT_EQ(pair.tokens.ids, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(pair.tokens.labels, (std::vector<int64_t>{kIgnoredToken, kIgnoredToken, 3}));
  EXPECT_EQ(pair.rejected_tokens.ids, (std::vector<int64_t>{1, 2, 4, 5}));
  EXPECT_EQ(pair.rejected_tokens.labels, (std::vector<int64_t>{kIgnoredToken, kIgnoredToken, 4, 5}));
}

TEST(TextReader, WrongPairsAreRefused) {
  EXPECT_THAT(said_of_line(R"({"prompt": "a", "chosen": "b", "rejected": [{"role": "user", "content": "c"}]})"),
              HasSubstr("line 3: \"chosen\" is string; \"prompt\", \"chosen\" and \"rejected\" must all be texts"));
  EXPECT_THAT(said_of_line(R"({"prompt": "a", "chosen": "b"})"), HasSubstr("exactly one kind"));
  EXPECT_THAT(said_of_line(R"({"chosen": "", "rejected": "b"})"), HasSubstr("is empty"));
  EXPECT_THAT(said_of_line(R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": "d"})"),
              HasSubstr("\"margin\" is \"d\"; must be a number"));
  EXPECT_THAT(said_of_line(R"({"prompt_input_ids": [], "chosen_input_ids": [], "rejected_input_ids": [1]})"),
              HasSubstr("\"chosen_input_ids\" is empty"));
}

}  // namespace
}  // namespace concord
