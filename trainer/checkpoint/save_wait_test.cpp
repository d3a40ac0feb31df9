#include "trainer/checkpoint/save_wait.h"

#include <gmock/gmock.h>

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// 20 steps take 2 s, and a save 4.51 s, which is 45.1 such steps.
TEST(SaveWait, NamesTheIntervalThatASaveFitsInto) {
  const SaveWait wait{.previous = 40, .step = 60, .seconds = 4.51, .waited = 2.51};
  EXPECT_TRUE(wait.is_noticeable());
  EXPECT_EQ(wait.fitting_interval(), 46);
  EXPECT_THAT(to_string(wait),
              AllOf(HasSubstr("waited 2.5 s at step 60 for the checkpoint of step 40"), HasSubstr("took 4.5 s"),
                    HasSubstr("at least 46 steps between"), HasSubstr("save_steps; here 20")));
}

TEST(SaveWait, IsNotWorthAMessageIfItIsShort) {
  EXPECT_FALSE((SaveWait{.previous = 1, .step = 2, .seconds = 1, .waited = 0.005}.is_noticeable()));
  EXPECT_FALSE((SaveWait{.previous = 1, .step = 2, .seconds = 0, .waited = 0}.is_noticeable()));
}

}  // namespace
}  // namespace concord
