#include "trainer/data/chat_template.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/config_error.h"
#include "core/quoted.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};

std::string trimmed(const std::string& text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

void append_qwen(const ChatMessage& message, std::vector<ChatPiece>* pieces) {
  const bool learnt = message.role == "assistant";
  pieces->push_back({"<|im_start|>", true, false});
  pieces->push_back({message.role + "\n", false, false});
  pieces->push_back({message.content, false, learnt});
  pieces->push_back({"<|im_end|>", true, learnt});
  pieces->push_back({"\n", false, false});
}

void append_llama3(const ChatMessage& message, std::vector<ChatPiece>* pieces) {
  const bool learnt = message.role == "assistant";
  if (pieces->empty()) pieces->push_back({"<|begin_of_text|>", true, false});
  pieces->push_back({"<|start_header_id|>", true, false});
  pieces->push_back({message.role, false, false});
  pieces->push_back({"<|end_header_id|>", true, false});
  pieces->push_back({"\n\n", false, false});
  pieces->push_back({trimmed(message.content), false, learnt});
  pieces->push_back({"<|eot_id|>", true, learnt});
}

}  // namespace

void check_chat_template(const std::string& chat_template) {
  if (chat_template != "qwen" && chat_template != "llama3") {
    throw ConfigError(fmt::format("unknown chat template {}; must be qwen or llama3", quoted(chat_template)));
  }
}

std::vector<ChatPiece> render_chat(const std::string& chat_template, const std::vector<ChatMessage>& messages) {
  check_chat_template(chat_template);
  std::vector<ChatPiece> pieces;
  for (const ChatMessage& message : messages) {
    if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end()) {
      throw ConfigError(fmt::format("unknown role {} in a conversation; must be system, user, assistant or tool",
                                    quoted(message.role)));
    }
    if (chat_template == "qwen") append_qwen(message, &pieces);
    if (chat_template == "llama3") append_llama3(message, &pieces);
  }
  if (std::none_of(pieces.begin(), pieces.end(), [](const ChatPiece& piece) { return piece.learnt; })) {
    throw ConfigError("the conversation has no assistant message, so there is nothing to learn");
  }
  return pieces;
}

AlignedTokens encode_chat(const std::vector<ChatPiece>& pieces, Tokenizer& tokenizer) {
  std::vector<std::string_view> texts;
  for (const ChatPiece& piece : pieces) {
    if (!piece.special) texts.push_back(piece.text);
  }
  const std::vector<std::vector<int64_t>> encoded = tokenizer.encode(texts, true);
  AlignedTokens tokens;
  auto next = encoded.begin();
  for (const ChatPiece& piece : pieces) {
    std::vector<int64_t> ids;
    if (!piece.special) {
      ids = *next++;
    } else if (const std::optional<int64_t> id = tokenizer.special(piece.text)) {
      ids = {*id};
    } else {
      throw ConfigError(
          fmt::format("the tokenizer {} has no token {}, which the chat template needs", tokenizer.name(), piece.text));
    }
    tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    if (!piece.learnt) std::fill(ids.begin(), ids.end(), kIgnoredToken);
    tokens.labels.insert(tokens.labels.end(), ids.begin(), ids.end());
  }
  return tokens;
}

}  // namespace concord
