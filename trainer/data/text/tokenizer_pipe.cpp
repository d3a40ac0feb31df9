#include "trainer/data/text/tokenizer_pipe.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "platform/base/framed_socket.hpp"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

constexpr int64_t kBytesPerMillisecond = 100;  // far slower than any tokenizer
constexpr size_t kMaxGreeting = 1 << 16;
constexpr size_t kMaxRefusal = 2000;
constexpr uint32_t kRefused = 0xffffffff;  // instead of a count

struct ItemHeader {
  uint32_t bytes = 0;
};

// Returns an integer in [0, |end|).
int64_t id_of(const nlohmann::json& value, int64_t end) {
  const bool is_below = value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(end);
  if (!is_below) throw ConfigError(fmt::format("an id or a size is not an integer >= 0 and < {}", end));
  return value.get<int64_t>();
}

TokenizerGreeting parse_greeting(const nlohmann::json& greeting) {
  TokenizerGreeting result;
  result.vocab_size = id_of(greeting.at("vocab_size"), std::numeric_limits<int32_t>::max());
  const int64_t end = result.vocab_size;
  if (const auto& id = greeting.at("end_of_document"); !id.is_null()) result.end_of_document = id_of(id, end);
  if (const auto& id = greeting.at("end_of_text"); !id.is_null()) result.end_of_text = id_of(id, end);
  if (const auto& rule = greeting.value("pieces", nlohmann::json()); rule.is_string()) {
    result.pieces = find_enum<PretokenizerPattern>(rule.get<std::string>());
    result.added_tokens = greeting.at("added_tokens").get<std::vector<std::string>>();
  }
  return result;
}

const char* to_text(TokenizerPipe::Kind kind) {
  switch (kind) {
    case TokenizerPipe::Kind::piece: return "piece";
    case TokenizerPipe::Kind::document: return "document";
    case TokenizerPipe::Kind::prompt: return "prompt";
    case TokenizerPipe::Kind::answer: return "answer";
  }
  return "unknown";
}

}  // namespace

TokenizerPipe::TokenizerPipe(UniqueFd to, UniqueFd from, std::string name, std::chrono::milliseconds patience)
    : from_(std::move(from)), to_(std::move(to)), name_(std::move(name)), patience_(patience), allowed_(patience) {}

void TokenizerPipe::fail(const std::string& what) const { throw std::runtime_error(name_ + " " + what); }

bool TokenizerPipe::wait_for(int fd, short events) const {
  if (wait_until_ready(fd, events, Clock::now() + allowed_)) return true;
  if (errno != 0) fail(fmt::format("cannot be polled: {}", std::strerror(errno)));
  fail_to_answer(allowed_);
}

void TokenizerPipe::fail_to_answer(std::chrono::milliseconds waited) const {
  fail(
      fmt::format("has not answered for {} s; check its output above, or, if it only needs more time, increase "
                  "CONCORD_TOKENIZER_TIMEOUT (seconds)",
                  std::chrono::duration<double>(waited).count()));
}

void TokenizerPipe::send(std::string_view bytes) {
  const auto wait = [this] { return wait_for(to_.get(), POLLOUT); };
  if (!send_all(to_.get(), bytes, wait)) fail(fmt::format("does not accept more text: {}", std::strerror(errno)));
}

void TokenizerPipe::receive(void* to, size_t count) {
  const auto wait = [this] { return wait_for(from_.get(), POLLIN); };
  if (receive_exactly(from_.get(), to, count, wait)) return;
  if (errno != 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
  fail(
      "exited before answering; see its output above. If it ran out of memory, increase CONCORD_TOKENIZER_MEMORY "
      "(GiB)");
}

std::string TokenizerPipe::read_first_line() {
  std::string line;
  const Clock::time_point end = Clock::now() + patience_;
  for (char letter = 0; letter != '\n'; line += letter) {
    if (line.size() == kMaxGreeting) fail(fmt::format("sent a first line of more than {} bytes", kMaxGreeting));
    if (Clock::now() > end) fail_to_answer(patience_);
    receive(&letter, 1);
  }
  line.pop_back();
  const nlohmann::json greeting = json_or_discarded(line);
  if (!greeting.is_object() || !greeting.contains("error")) return line;
  throw ConfigError(one_line(greeting["error"].is_string() ? greeting["error"].get<std::string>() : line, kMaxRefusal));
}

TokenizerGreeting TokenizerPipe::read_greeting() {
  const std::string line = read_first_line();
  try {
    const TokenizerGreeting result = parse_greeting(parse_json(line, "the line"));
    vocab_size_ = result.vocab_size;
    return result;
  } catch (const std::exception& error) {
    fail(fmt::format("sent an invalid first line {}: {}", quoted(line), one_line(error.what())));
  }
}

void TokenizerPipe::request(const char* kind, const std::vector<std::string_view>& items) {
  // The whole request is read before the answer is written (see the script), so the two sides cannot deadlock.
  std::string whole = fmt::format("{} {}\n", kind, items.size());
  for (const std::string_view item : items) {
    if (item.size() > std::numeric_limits<uint32_t>::max()) {
      throw ConfigError(
          fmt::format("a document of {} bytes is too long for the tokenizer; the limit is 4 GiB", item.size()));
    }
    append_message(ItemHeader{}, item, &whole);
  }
  allowed_ = patience_ + std::chrono::milliseconds(static_cast<int64_t>(whole.size()) / kBytesPerMillisecond);
  send(whole);
}

std::string TokenizerPipe::receive_text(uint32_t bytes) {
  constexpr uint32_t kAtOnce = 1 << 16;
  std::string text;
  while (text.size() < bytes) {
    const size_t before = text.size();
    text.resize(before + std::min<size_t>(bytes - before, kAtOnce));
    receive(text.data() + before, text.size() - before);
  }
  return text;
}

std::optional<std::vector<int64_t>> TokenizerPipe::receive_ids(std::optional<std::string>* refusal) {
  constexpr uint32_t kAtOnce = 1 << 16;
  uint32_t count = 0;
  receive(&count, sizeof count);
  if (count == kRefused) {
    receive(&count, sizeof count);
    const std::string reason = receive_text(count);
    if (!*refusal) *refusal = one_line(reason, kMaxRefusal);
    return std::nullopt;
  }
  std::vector<int64_t> ids;
  for (std::vector<uint32_t> piece; count > 0; count -= static_cast<uint32_t>(piece.size())) {
    piece.resize(std::min(count, kAtOnce));
    receive(piece.data(), piece.size() * sizeof(uint32_t));
    const uint32_t largest = *std::max_element(piece.begin(), piece.end());
    if (largest >= vocab_size_)
      fail(fmt::format("returned token id {}, but its vocabulary size is {}", largest, vocab_size_));
    ids.insert(ids.end(), piece.begin(), piece.end());
  }
  return ids;
}

std::vector<std::vector<int64_t>> TokenizerPipe::ids_of(Kind kind, const std::vector<std::string_view>& items) {
  request(to_text(kind), items);
  std::vector<std::vector<int64_t>> encoded;
  std::optional<std::string> refusal;
  for (size_t i = 0; i < items.size(); ++i) encoded.push_back(receive_ids(&refusal).value_or(std::vector<int64_t>()));
  if (refusal) throw ConfigError(*refusal);
  return encoded;
}

std::vector<TokensAndLabels> TokenizerPipe::learn(const std::vector<std::string_view>& chats) {
  request("learn", chats);
  std::vector<TokensAndLabels> encoded;
  std::optional<std::string> refusal;
  for (size_t i = 0; i < chats.size(); ++i) {
    const auto ids = receive_ids(&refusal);
    if (!ids) continue;
    const std::string learnt = receive_text(static_cast<uint32_t>(ids->size()));
    TokensAndLabels& tokens = encoded.emplace_back(TokensAndLabels{*ids, *ids});
    for (size_t t = 0; t < learnt.size(); ++t) {
      if (learnt[t] == 0) tokens.labels[t] = kIgnoredToken;
    }
  }
  if (refusal) throw ConfigError(*refusal);
  return encoded;
}

std::string TokenizerPipe::decode(const std::vector<int64_t>& ids) {
  const std::vector<uint32_t> words(ids.begin(), ids.end());
  return bytes_of("decode", {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t)});
}

std::string TokenizerPipe::bytes_of(const char* kind, std::string_view item) {
  request(kind, {item});
  uint32_t bytes = 0;
  receive(&bytes, sizeof bytes);
  if (bytes != kRefused) return receive_text(bytes);
  receive(&bytes, sizeof bytes);
  throw ConfigError(one_line(receive_text(bytes), kMaxRefusal));
}

}  // namespace concord
