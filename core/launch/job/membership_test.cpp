#include "core/launch/job/membership.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

TEST(Membership, ReadsWhatItHasWritten) {
  const Membership roster{.electorate = {.attempt = 7,
                                         .now = {.leader = 12, .launchers = {12, 13}},
                                         .before = {{.leader = 11, .launchers = {11, 12, 13}}}},
                          .voters = {{.launcher = 12, .node = 1, .port = 40001, .address = "10.0.0.2"},
                                     {.launcher = 13, .node = 2, .port = 40002, .address = "fe80::1%eth0"}}};
  EXPECT_EQ(pack(roster), "7 now,12,12,13 before,11,11,12,13 12,1,40001,10.0.0.2 13,2,40002,fe80::1%eth0");
  EXPECT_EQ(unpack_roster(pack(roster)), roster);
  EXPECT_EQ(unpack_roster(pack(Membership{})), Membership{});
}

TEST(Membership, RefusesWhatIsNone) {
  for (const char* text :
       {"7", "x now,1,1", "-1 now,1,1", "7 now,1", "7 now,0,1", "7 now,1,1 1,0,0,a", "7 now,1,1 1,0,5,",
        "7 1,0,5,a now,1,1", "7 now,1,1 now,1,1", "7 now,1,1 ", "7 now,1,1x", "7 now,1,1 1,99999,5,a"}) {
    EXPECT_FALSE(unpack_roster(text)) << text;
  }
}

}  // namespace
}  // namespace concord
