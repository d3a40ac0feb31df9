#include "core/schedule/action.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

TEST(Action, PrintsStageKindAndMicroBatch) {
  EXPECT_EQ(to_string(Action{.stage = 2, .microbatch = 0, .kind = ActionKind::forward}), "2F0");
  EXPECT_EQ(to_string(Action{.stage = 12, .microbatch = 345, .kind = ActionKind::recv_gradient}), "12RECV_B345");
  EXPECT_EQ(to_string(Action{.stage = 3, .kind = ActionKind::reduce_gradients}), "3REDUCE_GRAD");
}

TEST(Action, EveryKindParsesBack) {
  for (int kind = 0; kind <= static_cast<int>(ActionKind::reduce_gradients); ++kind) {
    for (const int32_t number : {0, 7, 10, 4095, kMaxIndex}) {
      const bool reduction = kind == static_cast<int>(ActionKind::reduce_gradients);
      const Action action{
          .stage = number, .microbatch = reduction ? 0 : number / 2, .kind = static_cast<ActionKind>(kind)};
      EXPECT_EQ(parse_action(to_string(action)), action) << to_string(action);
    }
  }
}

TEST(Action, OtherTextIsNone) {
  for (const char* text : {"",        "F",          "2",
                           "2F",      "F0",         "2f0",
                           "2F0 ",    " 2F0",       "-2F0",
                           "2F-1",    "+2F0",       "02F0",
                           "2F00",    "2X0",        "2FB0",
                           "2SEND_0", "2SEND_F",    "2REDUCE_GRAD0",
                           "2F0x",    "16777217F0", "2F99999999999999999999",
                           "2F1e3"}) {
    EXPECT_FALSE(parse_action(text)) << text;
  }
}

TEST(Action, TheOtherEndOfATransferIsTheNeighbouringStage) {
  EXPECT_EQ(peer_stage({.stage = 2, .kind = ActionKind::send_activation}), 3);
  EXPECT_EQ(peer_stage({.stage = 2, .kind = ActionKind::recv_activation}), 1);
  EXPECT_EQ(peer_stage({.stage = 2, .kind = ActionKind::send_gradient}), 1);
  EXPECT_EQ(peer_stage({.stage = 2, .kind = ActionKind::recv_gradient}), 3);
}

}  // namespace
}  // namespace concord
