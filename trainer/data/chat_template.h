// Conversations as models are trained to read them, and which part of them is to be learnt.
//
// Each message is, for
//   "qwen" (ChatML):  <|im_start|>role\ncontent<|im_end|>\n
//   "llama3":         <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>, all after <|begin_of_text|>
//
// Learnt is what the assistant says and the special that ends it; everything else is a prompt. No system message is
// added where the conversation has none. llama3 trims white space around a message's content, as Meta's template does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/tokenizer.h"

namespace concord {

struct ChatMessage {
  std::string role;  // system, user, assistant or tool
  std::string content;
};

// A part of the rendered conversation; specials are parts of their own.
struct ChatPiece {
  std::string text;
  bool special = false;
  bool learnt = false;
  bool operator==(const ChatPiece&) const = default;
};

// Throws ConfigError for a template that does not exist (and lists those that do).
void check_chat_template(const std::string& chat_template);
// Throws ConfigError for an unknown role, or if the assistant says nothing: there would be nothing to learn.
std::vector<ChatPiece> render_chat(const std::string& chat_template, const std::vector<ChatMessage>& messages);

// Ids and aligned labels (HF's convention: the id itself where it is trained on, otherwise kIgnoredToken).
struct AlignedTokens {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
};
// Each piece is encoded separately, as a prompt is when the model is used. Throws ConfigError for a special that the
// tokenizer does not have.
AlignedTokens encode_chat(const std::vector<ChatPiece>& pieces, Tokenizer& tokenizer);

}  // namespace concord
