#include "trainer/generation/prompts.h"

#include <fmt/core.h>

#include <filesystem>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/media/media_file.h"
#include "trainer/data/text/text_reader.h"

namespace concord {
namespace {

using nlohmann::json;
constexpr uint64_t kMaxConfigBytes = 16 << 20;

Prompt parse_prompt(std::string_view line, bool chat, const std::string& place) {
  const json record = parse_json(line, place);
  if (record.is_object() && record.contains("prompt") && record["prompt"].is_string()) {
    return make_prompt(record["prompt"].get<std::string>(), chat);
  }
  if (!record.is_object() || !(record.contains("messages") || record.contains("input_ids"))) {
    throw ConfigError(
        place + R"(: must be {"prompt": "..."}, {"messages": [{"role", "content"}, ...]} or {"input_ids": [...]})");
  }
  JsonRecord read = parse_json_record(line, place);
  if (read.kind == JsonRecord::Kind::kTokens) return {Prompt::Kind::ids, "", std::move(read.tokens.ids)};
  return {.kind = Prompt::Kind::chat, .text = std::move(read.text), .ids = {}, .media = std::move(read.media)};
}

std::vector<int64_t> eos_of(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  const json config = parse_json(InputFile(file.string()).read(kMaxConfigBytes, "a configuration"), file.string());
  if (!config.is_object() || !config.contains("eos_token_id")) return {};
  const json& value = config["eos_token_id"];
  std::vector<int64_t> ids;
  for (const json& each : value.is_array() ? value : json::array({value})) {
    if (each.is_number_integer()) ids.push_back(each.get<int64_t>());
  }
  return ids;
}

// A character cut in half is decoded as U+FFFD.
bool ends_within_character(const std::string& text) { return text.ends_with("\xEF\xBF\xBD"); }

}  // namespace

Prompt make_prompt(const std::string& text, bool chat, const std::vector<std::string>& images,
                   const std::vector<std::string>& videos) {
  if (!chat && !(images.empty() && videos.empty()))
    throw ConfigError("images and videos are part of a message; add --chat");
  if (!chat) return {Prompt::Kind::text, text};
  Prompt prompt{.kind = Prompt::Kind::chat, .text = {}};
  json content = json::array();
  for (const auto& [type, files] : {std::pair{"image", &images}, std::pair{"video", &videos}}) {
    for (const std::string& file : *files) {
      content.push_back({{"type", type}});
      prompt.media.push_back({.is_video = files == &videos, .value = json(file).dump()});
    }
  }
  content.push_back({{"type", "text"}, {"text", text}});
  if (prompt.media.empty()) content = text;
  prompt.text = json{{"messages", json::array({{{"role", "user"}, {"content", content}}})}}.dump();
  return prompt;
}

std::vector<Prompt> read_prompts(const std::string& path, bool chat) {
  const MappedFile file(path);
  check_text(file.text(), path, 1);
  std::vector<Prompt> prompts;
  for_each_line(file.text(), [&](std::string_view line, int64_t number) {
    const std::string place = fmt::format("{}, line {}", path, number);
    prompts.push_back(path.ends_with(".jsonl") ? parse_prompt(line, chat, place)
                                               : make_prompt(std::string(line), chat));
  });
  if (prompts.empty()) throw ConfigError(path + ": contains no prompts; put one on each line");
  return prompts;
}

namespace {

std::vector<std::vector<int64_t>> encode_texts(const std::vector<Prompt>& prompts, Tokenizer* tokenizer) {
  std::vector<std::vector<int64_t>> encoded;
  for (const Prompt& prompt : prompts) {
    if (prompt.kind == Prompt::Kind::ids) {
      encoded.push_back(prompt.ids);
      continue;
    }
    const std::string number = fmt::format("prompt {}", encoded.size() + 1);
    if (tokenizer == nullptr) {
      throw ConfigError(number +
                        " is text, but the model's folder has no tokenizer.json; pass a tokenizer with "
                        "--tokenizer, or tokens as {\"input_ids\": [...]}");
    }
    try {
      const bool is_chat = prompt.kind == Prompt::Kind::chat;
      auto ids = is_chat ? tokenizer->encode_chat_prompts({prompt.text}) : tokenizer->encode_prompts({prompt.text});
      encoded.push_back(std::move(ids.front()));
    } catch (const ConfigError& error) {
      throw ConfigError(number + ": " + error.what());
    }
  }
  return encoded;
}

}  // namespace

std::vector<std::vector<int64_t>> encode_prompts(const std::vector<Prompt>& prompts, Tokenizer* tokenizer) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].media.empty()) continue;
    throw ConfigError(fmt::format("prompt {} has images or videos, which only concord generate supports", i + 1));
  }
  return encode_texts(prompts, tokenizer);
}

std::vector<std::vector<int64_t>> encode_prompts(const std::vector<Prompt>& prompts, Tokenizer* tokenizer,
                                                 MediaProcessor& processor, std::vector<BatchMedia>* media) {
  std::vector<Prompt> texts = prompts;
  media->assign(prompts.size(), {});
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].media.empty()) continue;
    try {
      const MediaProcessor::Converted made = processor.convert(prompts[i].media, "");
      texts[i].text = with_media_texts(std::move(texts[i].text), made.texts);
      (*media)[i] = to_batch_media(made.media, processor.format());
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("prompt {}: {}", i + 1, error.what()));
    }
  }
  return encode_texts(texts, tokenizer);
}

std::vector<int64_t> end_tokens(const std::string& folder, const Tokenizer* tokenizer) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::vector<int64_t> ids = eos_of(std::filesystem::path(folder) / name);
    if (!ids.empty()) return ids;
  }
  if (tokenizer == nullptr || !tokenizer->end_of_text()) return {};
  return {*tokenizer->end_of_text()};
}

std::string tokenizer_of_model(const std::string& given, const std::string& folder) {
  if (!given.empty()) return given;
  std::error_code ignored;
  const std::filesystem::path own = std::filesystem::path(folder) / "tokenizer.json";
  return std::filesystem::exists(own, ignored) ? own.string() : "";
}

std::string IncrementalDetokenizer::add(int64_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_);
  if (ends_within_character(text) || text.size() < shown_) return "";
  const std::string more = text.substr(shown_);
  shown_ = text.size();
  return more;
}

std::string IncrementalDetokenizer::finish() {
  const std::string text = tokenizer_.decode(ids_);
  return text.size() > shown_ ? text.substr(shown_) : "";
}

}  // namespace concord
