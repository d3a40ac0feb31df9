// What is to be continued by a model: texts, conversations or tokens, from the command line or from a file. Needs no
// libtorch. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/text/tokenizer.h"

namespace concord {

struct Prompt {
  enum class Kind { text, chat, ids };
  Kind kind = Kind::text;
  std::string text;               // of a chat: JSON, as Tokenizer::encode_chat_prompts takes it
  std::vector<int64_t> ids = {};  // of Kind::ids
};

// |text|, or with |chat| a conversation in which the user has said it.
Prompt make_prompt(const std::string& text, bool chat);

// One prompt per line that is not blank. A .jsonl has {"prompt": ...}, {"messages": [...]} or {"input_ids": [...]};
// any other file has texts. With |chat| texts are what a user says. Throws ConfigError, with file and line, for what is
// none of these, and for a file without prompts.
std::vector<Prompt> read_prompts(const std::string& path, bool chat);

// |tokenizer| may be null if all prompts are tokens. Throws ConfigError as the tokenizer does, with the prompt's
// number.
std::vector<std::vector<int64_t>> encode_prompts(const std::vector<Prompt>& prompts, Tokenizer* tokenizer);

// The tokens that end what the model in |folder| writes: eos_token_id of its generation_config.json, else of its
// config.json, else end_of_text of |tokenizer|, which may be null; none if nothing says.
std::vector<int64_t> end_tokens(const std::string& folder, const Tokenizer* tokenizer);

// The tokenizer of a model: |given|, else the model folder's own; empty if it has none.
std::string tokenizer_of_model(const std::string& given, const std::string& folder);

// Ids as text that grows while they come, for a terminal. A character that takes several tokens waits for its last.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // What |id| adds to the text that was returned before.
  std::string add(int64_t id);
  // What was held back.
  std::string finish();

 private:
  Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;
  size_t shown_ = 0;  // bytes of the text
};

}  // namespace concord
