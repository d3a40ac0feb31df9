#include "trainer/data/text/tokenizer_process.h"

#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr const char* kScript =
#include "tokenizer_script.inc"
    ;

}  // namespace

std::string tokenizer_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string file = fs::is_directory(path, ignored) ? (fs::path(path) / "tokenizer.json").string() : path;
  if (!fs::exists(file, ignored)) {
    throw ConfigError(
        fmt::format("tokenizer {} not found; use 'byte', a tokenizer.json, or a folder that contains one", file));
  }
  InputFile(file, "use 'byte', a tokenizer.json, or a folder that contains one");
  return file;
}

namespace {

// Returns the number in the environment variable |name|, or |fallback|.
double setting(const char* name, const char* unit, double fallback) {
  constexpr double kMaxSetting = 1e6;
  const char* const given = std::getenv(name);
  if (given == nullptr || *given == '\0') return fallback;
  char* end = nullptr;
  const double number = std::strtod(given, &end);
  if (*end == '\0' && number > 0 && number <= kMaxSetting) return number;
  throw ConfigError(
      fmt::format("{} is {}; must be a number of {} > 0 and <= {:g}", name, quoted(given), unit, kMaxSetting));
}

}  // namespace

std::chrono::milliseconds python_patience() {
  const double seconds = setting("CONCORD_TOKENIZER_TIMEOUT", "seconds", 120);
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

uint64_t python_memory_limit() {
  return static_cast<uint64_t>(setting("CONCORD_TOKENIZER_MEMORY", "GiB", 16) * (int64_t{1} << 30));
}

TokenizerProcess::TokenizerProcess(const std::string& path, const std::string& chat_template)
    : file_(tokenizer_file(path)),
      process_(kScript, {file_, chat_template}, "the tokenizer " + file_, python_memory_limit()) {
  pipe_ = std::make_unique<TokenizerPipe>(
      process_.take_input(), process_.take_output(),
      fmt::format("the tokenizer process ({}, pid {})", process_.python(), process_.pid()), python_patience());
  greeting_ = pipe_->read_greeting();
  if (greeting_.pieces) pieces_.emplace(*greeting_.pieces, greeting_.added_tokens);
}

TokenizerProcess::~TokenizerProcess() = default;

std::vector<Tokenizer::Ids> TokenizerProcess::encode(const std::vector<std::string_view>& texts) {
  if (!pieces_) return pipe_->ids_of(TokenizerPipe::Kind::document, texts);
  std::vector<std::string_view> plain, others;
  std::vector<bool> is_plain;
  for (const std::string_view text : texts) {
    is_plain.push_back(pieces_->is_plain(text));
    (is_plain.back() ? plain : others).push_back(text);
  }
  std::vector<Ids> encoded =
      pieces_->encode(plain, [&](const auto& pieces) { return pipe_->ids_of(TokenizerPipe::Kind::piece, pieces); });
  std::vector<Ids> rest;
  if (!others.empty()) rest = pipe_->ids_of(TokenizerPipe::Kind::document, others);
  std::vector<Ids> all;
  for (size_t i = 0, from_plain = 0, from_rest = 0; i < texts.size(); ++i)
    all.push_back(std::move(is_plain[i] ? encoded[from_plain++] : rest[from_rest++]));
  return all;
}

std::vector<Tokenizer::Ids> TokenizerProcess::encode_prompts(const std::vector<std::string_view>& texts) {
  return pipe_->ids_of(TokenizerPipe::Kind::prompt, texts);
}

std::vector<Tokenizer::Ids> TokenizerProcess::encode_chat_prompts(const std::vector<std::string_view>& chats) {
  return pipe_->ids_of(TokenizerPipe::Kind::answer, chats);
}

std::vector<TokensAndLabels> TokenizerProcess::encode_samples(const std::vector<std::string_view>& samples) {
  return pipe_->learn(samples);
}

std::string TokenizerProcess::decode(const Ids& ids) { return pipe_->decode(ids); }

}  // namespace concord
