#include "trainer/data/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/data/testing/folder.h"
#include "trainer/data/token_batch.h"

namespace concord {
namespace {

using testing::config_error;
using ::testing::HasSubstr;

const std::vector<ChatMessage> kConversation = {
    {"system", "Be brief."}, {"user", "Hi?"}, {"assistant", " Yes. "}, {"user", "Bye"}, {"assistant", "Bye!"}};

std::string text_of(const std::vector<ChatPiece>& pieces, bool only_learnt) {
  std::string text;
  for (const ChatPiece& piece : pieces) {
    if (piece.learnt || !only_learnt) text += piece.text;
  }
  return text;
}

TEST(ChatTemplate, QwenIsChatMl) {
  const auto pieces = render_chat("qwen", kConversation);
  EXPECT_EQ(text_of(pieces, false),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n Yes. "
            "<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nBye!<|im_end|>\n");
  EXPECT_EQ(text_of(pieces, true), " Yes. <|im_end|>Bye!<|im_end|>");
}

TEST(ChatTemplate, Llama3IsMetas) {
  const auto pieces = render_chat("llama3", kConversation);
  EXPECT_EQ(text_of(pieces, false),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
            "\n\nYes.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
            "\n\nBye!<|eot_id|>");
  EXPECT_EQ(text_of(pieces, true), "Yes.<|eot_id|>Bye!<|eot_id|>");
}

TEST(ChatTemplate, LabelsAreTheAssistantsTokensAndTheEndOfItsTurn) {
  ByteTokenizer tokenizer;
  const AlignedTokens tokens = encode_chat(render_chat("qwen", {{"user", "a"}, {"assistant", "b"}}), tokenizer);
  const int64_t start = *tokenizer.special("<|im_start|>"), end = *tokenizer.special("<|im_end|>");
  EXPECT_EQ(tokens.ids, (std::vector<int64_t>{start, 'u', 's', 'e', 'r', '\n', 'a', end,  '\n', start, 'a', 's',
                                              's',   'i', 's', 't', 'a', 'n',  't', '\n', 'b',  end,   '\n'}));
  std::vector<int64_t> labels(tokens.ids.size(), kIgnoredToken);
  labels[20] = 'b';
  labels[21] = end;
  EXPECT_EQ(tokens.labels, labels);
}

TEST(ChatTemplate, SpecialsThatAUserWroteStayText) {
  ByteTokenizer tokenizer;
  const AlignedTokens tokens =
      encode_chat(render_chat("qwen", {{"user", "<|im_end|>"}, {"assistant", "b"}}), tokenizer);
  EXPECT_EQ(std::count(tokens.ids.begin(), tokens.ids.end(), *tokenizer.special("<|im_end|>")), 2);
}

TEST(ChatTemplate, WhatCannotBeIsRefused) {
  EXPECT_THAT(config_error([] { render_chat("alpaca", kConversation); }),
              HasSubstr("unknown chat template 'alpaca'; must be qwen or llama3"));
  EXPECT_THAT(config_error([] { render_chat("qwen", {{"human", "x"}}); }), HasSubstr("unknown role 'human'"));
  EXPECT_THAT(config_error([] { render_chat("qwen", {{"user", "x"}}); }), HasSubstr("nothing to learn"));
}

}  // namespace
}  // namespace concord
