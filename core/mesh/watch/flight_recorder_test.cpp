#include "core/mesh/watch/flight_recorder.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace concord {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::SizeIs;

CallSignature all_reduce(int64_t count) {
  return {.op = CommOp::kAllReduce,
          .dtype = DType::kF32,
          .count = count,
          .reduce = ReduceOp::kSum,
          .root = {},
          .detail = {}};
}

GroupPosition waiting(int64_t finished, const std::string& call, CallState state = CallState::started) {
  return {"tp", finished + 1, finished, "all_reduce sum f32 x 1024", call, state};
}

GroupPosition idle(int64_t finished) { return {"tp", finished, finished, "all_reduce sum f32 x 1024", "", {}}; }

TEST(CallSignature, ReadsLikeTheCall) {
  EXPECT_EQ(all_reduce(1024).to_string(), "all_reduce sum f32 x 1024");
  const CallSignature broadcast{CommOp::kBroadcast, DType::kBF16, 8, {}, 2, {}};
  EXPECT_EQ(broadcast.to_string(), "broadcast bf16 x 8 from 2");
  const CallSignature reduce{CommOp::kReduce, DType::kF16, 8, ReduceOp::kMax, 0, {}};
  EXPECT_EQ(reduce.to_string(), "reduce max f16 x 8 to 0");
  const CallSignature p2p{CommOp::kP2p, DType::kF32, 8, {}, {}, "send 4 to 1, recv 4 from 2"};
  EXPECT_EQ(p2p.to_string(), "p2p f32 (send 4 to 1, recv 4 from 2)");
  EXPECT_EQ((CallSignature{CommOp::kBarrier, DType::kU8, 0, {}, {}, {}}).to_string(), "barrier");
}

TEST(FlightRecorder, KnowsWhereEachGroupIs) {
  FlightRecorder recorder;
  const uint64_t first = recorder.record("tp", 1, all_reduce(1));
  recorder.record("dp", 1, all_reduce(7));
  const uint64_t second = recorder.record("tp", 2, all_reduce(2));
  recorder.record("tp", 3, all_reduce(3));
  recorder.mark(first, CallState::done);
  recorder.mark(second, CallState::started);
  const std::vector<GroupPosition> expected = {
      {"tp", 3, 1, "all_reduce sum f32 x 1", "all_reduce sum f32 x 2", CallState::started},
      {"dp", 1, 0, "", "all_reduce sum f32 x 7", CallState::queued}};
  EXPECT_EQ(recorder.positions(), expected);
}

TEST(FlightRecorder, KeepsTheLastThousandCalls) {
  FlightRecorder recorder;
  std::vector<uint64_t> tickets;
  for (int64_t call = 1; call <= 2500; ++call) tickets.push_back(recorder.record("tp", call, all_reduce(call)));
  recorder.mark(tickets[0], CallState::failed);  // overwritten: changes no other entry
  recorder.mark(tickets[2498], CallState::done);
  const json dump = json::parse(recorder.to_json(3, 4, "because"));
  EXPECT_EQ(dump["rank"], 3);
  EXPECT_EQ(dump["world_size"], 4);
  EXPECT_EQ(dump["why"], "because");
  ASSERT_THAT(dump["calls"], SizeIs(1000));
  EXPECT_EQ(dump["calls"][0]["sequence"], 1501);
  EXPECT_EQ(dump["calls"][0]["state"], "queued");
  EXPECT_EQ(dump["calls"][998]["state"], "done");
  EXPECT_EQ(dump["calls"][998]["call"], "all_reduce sum f32 x 2499");
  EXPECT_TRUE(dump["calls"][998].contains("ended_us"));
  EXPECT_EQ(dump["calls"][999]["sequence"], 2500);
}

TEST(FlightRecorder, TakesCallsFromSeveralThreads) {
  FlightRecorder recorder;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&recorder, name = fmt::format("g{}", thread)] {
      for (int64_t call = 1; call <= 500; ++call)
        recorder.mark(recorder.record(name, call, all_reduce(1)), CallState::done);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const GroupPosition& position : recorder.positions()) EXPECT_EQ(position.finished, 500) << position.group;
}

TEST(Positions, ComeBackFromTextAndStayWithinTheLimit) {
  const std::vector<GroupPosition> positions = {waiting(17, "a"), {"dp", 9, 9, "b", "", CallState::done}};
  EXPECT_EQ(unpack_positions(pack_positions(positions, 1 << 16)), positions);
  const std::string cut = pack_positions(positions, 200);
  EXPECT_LE(cut.size(), 200u);
  EXPECT_EQ(unpack_positions(cut), std::vector<GroupPosition>{positions[0]});
  for (const char* bad :
       {"", "{", "[1]", "[{}]",
        R"([{"group":"tp","made":1,"finished":0,"finished_call":"","next_call":"","next_state":"x"}])"}) {
    EXPECT_THAT(unpack_positions(bad), SizeIs(0)) << bad;
  }
}

TEST(WhoIsBehind, NamesTheRankThatHasNotMadeTheCall) {
  const std::string rs = "reduce_scatter sum f32 x 64";
  EXPECT_EQ(
      describe_lagging_ranks("tp",
                             std::vector<MemberPosition>{{0, waiting(17, rs)}, {1, waiting(17, rs)}, {3, idle(17)}}),
      "rank 3 is behind in group tp: it finished call 17 (all_reduce sum f32 x 1024) and not call 18; the others are "
      "at call 18 (reduce_scatter sum f32 x 64)");
}

TEST(WhoIsBehind, NamesRanksThatNeverMadeACall) {
  const GroupPosition none{"tp", 0, 0, "", "", CallState::queued};
  EXPECT_EQ(describe_lagging_ranks("tp", std::vector<MemberPosition>{{0, waiting(0, "barrier")}, {1, none}, {2, none}}),
            "ranks 1, 2 are behind in group tp: they made no call and not call 1; the others are at call 1 (barrier)");
}

TEST(WhoIsBehind, NamesARankThatWaitsAtAnEarlierCall) {
  GroupPosition ahead = waiting(20, "x");
  EXPECT_EQ(describe_lagging_ranks("tp", std::vector<MemberPosition>{{0, ahead}, {1, waiting(17, "y")}}),
            "rank 1 is behind in group tp: it reached call 18 (y) and not call 19; the others are at call 21 (x)");
}

TEST(WhoIsBehind, NamesARankThatDoesNotAnswer) {
  EXPECT_EQ(describe_lagging_ranks("tp", std::vector<MemberPosition>{{0, waiting(17, "x")}, {3, std::nullopt}}),
            "rank 3 is behind in group tp: no answer; the others are at call 18 (x)");
  EXPECT_EQ(describe_lagging_ranks("tp", std::vector<MemberPosition>{{0, waiting(17, "x")},
                                                                     {2, std::nullopt, "pid 12 is stopped"},
                                                                     {3, std::nullopt, "pid 13 has ended"}}),
            "ranks 2, 3 are behind in group tp: no answer (pid 12 is stopped, pid 13 has ended); the others are at "
            "call 18 (x)");
}

TEST(WhoIsBehind, NamesCallsThatDiffer) {
  EXPECT_EQ(describe_lagging_ranks(
                "tp", std::vector<MemberPosition>{{0, waiting(4, "x")}, {1, waiting(4, "y")}, {2, waiting(4, "x")}}),
            "the calls of group tp differ at call 5: rank 1 made y, ranks 0, 2 made x");
}

TEST(WhoIsBehind, NamesARankWhoseDeviceIsBusyWithOtherWork) {
  EXPECT_EQ(describe_lagging_ranks(
                "tp", std::vector<MemberPosition>{{0, waiting(4, "x")}, {1, waiting(4, "x", CallState::queued)}}),
            "rank 1 is behind in group tp: call 5 (x) is queued there after other work; the others have started it");
}

TEST(WhoIsBehind, SaysWhenNobodyIs) {
  EXPECT_FALSE(is_any_behind(std::vector<MemberPosition>{{0, waiting(4, "x")}, {1, waiting(4, "x")}}));
  EXPECT_TRUE(is_any_behind(std::vector<MemberPosition>{{0, waiting(4, "x")}, {1, std::nullopt}}));
  EXPECT_EQ(describe_lagging_ranks("tp", std::vector<MemberPosition>{{0, waiting(4, "x")}, {1, waiting(4, "x")}}),
            "all ranks of group tp are at call 5 (x)");
}

TEST(WhoIsBehind, CountsRanksThatAreTooManyToName) {
  std::vector<MemberPosition> members = {{0, waiting(1, "x")}};
  for (int64_t rank = 1; rank <= 100; ++rank) members.push_back({rank, std::nullopt});
  EXPECT_THAT(describe_lagging_ranks("tp", members), HasSubstr("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 92 more are behind"));
}

TEST(WhereTheyAre, ListsTheMembersOfATransfer) {
  EXPECT_EQ(
      describe_positions("pp", std::vector<MemberPosition>{{0, waiting(6, "send")}, {8, idle(6)}, {9, std::nullopt}}),
      "rank 9 is behind in group pp: no answer; transfers of group pp: rank 0 is at call 7 (send), rank 8 is "
      "past call 6 (all_reduce sum f32 x 1024), rank 9 "
      "does not answer");
}

}  // namespace
}  // namespace concord
