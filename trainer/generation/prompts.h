// Prompts: texts, conversations or tokens, from the command line or from a file. Needs no libtorch. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/data/media/media_processor.h"
#include "trainer/data/text/tokenizer.h"
#include "trainer/data/token_batch.h"

namespace concord {

struct Prompt {
  enum class Kind { text, chat, ids };
  Kind kind = Kind::text;
  std::string text;                      // for chats JSON, see Tokenizer::encode_chat_prompts
  std::vector<int64_t> ids = {};         // for Kind::ids
  std::vector<RecordMedium> media = {};  // of a chat
};

// Returns |text| as a prompt, or with |chat| as the first message of a user, after the files |images| and
// |videos|. Throws ConfigError for these without |chat|.
Prompt make_prompt(const std::string& text, bool chat, const std::vector<std::string>& images = {},
                   const std::vector<std::string>& videos = {});

// Reads one prompt per line that is not blank. A .jsonl has {"prompt": ...}, {"messages": [...]} or {"input_ids":
// [...]}; any other file has texts. With |chat| texts are messages of a user. Throws ConfigError, with file and line,
// for any other line, and for a file without prompts.
std::vector<Prompt> read_prompts(const std::string& path, bool chat);

// Returns the token ids of each prompt. |tokenizer| may be null if all prompts are tokens. Throws ConfigError as the
// tokenizer does, with the prompt's number, and for a prompt with images or videos.
std::vector<std::vector<int64_t>> encode_prompts(const std::vector<Prompt>& prompts, Tokenizer* tokenizer);

// Like encode_prompts() above for prompts with images and videos; |media| has an entry for each of |prompts|.
std::vector<std::vector<int64_t>> encode_prompts(const std::vector<Prompt>& prompts, Tokenizer* tokenizer,
                                                 MediaProcessor& processor, std::vector<BatchMedia>* media);

// Returns the tokens that end a text of the model in |folder|: the first of eos_token_id in its generation_config.json,
// eos_token_id in its config.json, and end_of_text of |tokenizer| (which may be null) that exists; empty if none does.
std::vector<int64_t> end_tokens(const std::string& folder, const Tokenizer* tokenizer);

// Returns the tokenizer of a model: |given|, or else the one in the model's folder; empty if it has none.
std::string tokenizer_of_model(const std::string& given, const std::string& folder);

// Decodes token ids one by one, for a terminal. A character that consists of several tokens is returned with the last
// of them.
class IncrementalDetokenizer {
 public:
  explicit IncrementalDetokenizer(Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // Returns the text that |id| adds.
  std::string add(int64_t id);
  // Returns the text that was held back.
  std::string finish();

 private:
  Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;
  size_t shown_ = 0;  // bytes of the text that were returned
};

}  // namespace concord
