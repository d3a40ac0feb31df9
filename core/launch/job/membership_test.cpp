#include "core/launch/job/membership.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

TEST(Membership, RoundTripsThroughJson) {
  const Membership membership{.attempt = 7, .job = "job", .who = {{0, "process 1 on a"}, {12, "process \"2\" on b"}}};
  EXPECT_EQ(to_json(membership),
            R"({"attempt":7,"job":"job","machines":{"0":"process 1 on a","12":"process \"2\" on b"}})");
  EXPECT_EQ(parse_membership(to_json(membership)), membership);
  const LeaderAddress leader{.launcher = 7, .address = "fe80::1%eth0", .port = 40001, .who = "process 1 on a"};
  EXPECT_EQ(parse_leader(to_json(leader)), leader);
}

TEST(Membership, RejectsAnythingElse) {
  for (const char* text :
       {"", "7", "{}", R"({"attempt":-1,"job":"j","machines":{}})", R"({"attempt":1.5,"job":"j","machines":{}})",
        R"({"attempt":99999999999,"job":"j","machines":{}})", R"({"attempt":1,"job":"j","machines":[]})",
        R"({"attempt":1,"machines":{"x":"w"}})", R"({"attempt":1,"machines":{"-1":"w"}})",
        R"({"attempt":1,"machines":{"99999":"w"}})", R"({"attempt":1,"machines":{"1":2}})"}) {
    EXPECT_FALSE(parse_membership(text)) << text;
  }
  for (const char* text : {"", "[]", R"({"launcher":1,"address":"a"})", R"({"launcher":1,"address":"a","port":0})",
                           R"({"launcher":0,"address":"a","port":1})", R"({"launcher":1,"address":"","port":1})",
                           R"({"launcher":1,"address":"a","port":65536})", R"({"launcher":1,"address":3,"port":1})"}) {
    EXPECT_FALSE(parse_leader(text)) << text;
  }
}

}  // namespace
}  // namespace concord
