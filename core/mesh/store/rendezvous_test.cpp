#include "core/mesh/store/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "core/mesh/peers.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto kLong = 60s;  // ends a hang; no verdict depends on it

Member member(int64_t rank, int64_t world, std::vector<Term> terms = {{"tp", "2"}, {"pp", "4"}}) {
  return {rank, world, "process " + std::to_string(100 + rank), std::move(terms)};
}

// Returns the outcome for each of |members| of a rendezvous in one store: "" or the message of its error.
std::vector<std::string> meet(const std::vector<Member>& members, std::chrono::milliseconds timeout) {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::future<std::string>> ranks;
  for (const Member& each : members) {
    ranks.push_back(std::async(std::launch::async, [&each, timeout, store] {
      try {
        rendezvous(*store, each, timeout);
        return std::string();
      } catch (const Error& error) {
        return std::string(error.what());
      }
    }));
  }
  std::vector<std::string> results;
  for (auto& rank : ranks) results.push_back(rank.get());
  return results;
}

TEST(Rendezvous, AllRanksOfAWorldMeet) {
  EXPECT_THAT(meet({member(0, 1)}, kLong), ::testing::Each(""));
  std::vector<Member> sixteen;
  for (int64_t rank = 0; rank < 16; ++rank) sixteen.push_back(member(rank, 16));
  EXPECT_THAT(meet(sixteen, kLong), ::testing::Each(""));
}

TEST(Rendezvous, TwoProcessesWithOneRankAreNamedToEveryone) {
  const auto results = meet({member(0, 3), member(1, 3), member(1, 3)}, kLong);
  for (const std::string& result : results) {
    EXPECT_THAT(result, AllOf(HasSubstr("two processes have rank 1 of 3: process 101"), HasSubstr("own RANK")));
  }
}

TEST(Rendezvous, ARankWithOtherSettingsIsNamedToEveryone) {
  const auto results = meet({member(0, 3), member(1, 3), member(2, 3, {{"tp", "2"}, {"pp", "8"}})}, kLong);
  for (const std::string& result : results) {
    EXPECT_THAT(result, HasSubstr("rank 2 was started with pp 8, rank 0 with pp 4; start all ranks with the same"));
  }
}

// Rank 0 serves the store in which the last rank will find the error.
TEST(Rendezvous, RankZeroStaysUntilALateRankHasSeenTheError) {
  const std::shared_ptr<Store> store = make_local_store();
  const auto comes = [store](const Member& each) {
    EXPECT_THAT([&] { rendezvous(*store, each, kLong); },
                ::testing::ThrowsMessage<Error>(HasSubstr("started with tp 4")));
  };
  auto first = std::async(std::launch::async, [&] { comes(member(0, 3)); });
  comes(member(2, 3, {{"tp", "4"}, {"pp", "4"}}));
  while (store->add("rendezvous/seen", 0) < 2) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(first.wait_for(50ms), std::future_status::timeout) << "rank 1 has not come yet";
  comes(member(1, 3));
  first.get();
}

TEST(Rendezvous, ARankWithMoreSettingsIsAnotherBuild) {
  const auto results = meet({member(0, 2), member(1, 2, {{"tp", "2"}, {"pp", "4"}, {"cp", "1"}})}, kLong);
  for (const std::string& result : results) EXPECT_THAT(result, HasSubstr("different builds"));
}

TEST(Rendezvous, RanksThatNeverComeAreNamedByRankZero) {
  const auto results = meet({member(0, 4), member(2, 4)}, 50ms);
  EXPECT_THAT(results[0], AllOf(HasSubstr("only 2 of 4 ranks"), HasSubstr("rank 0 waited for ranks 1, 3;")));
  EXPECT_THAT(results[1], HasSubstr("only 2 of 4 ranks"));
}

TEST(Rendezvous, WithoutRankZeroTheOthersEnd) {
  EXPECT_THAT(meet({member(1, 2)}, 50ms)[0], HasSubstr("only 0 of 2 ranks joined within 50 ms; rank 1 waited"));
}

TEST(Rendezvous, TheServerLeavesLast) {
  const std::shared_ptr<Store> store = make_local_store();
  const auto nobody = [] { return false; };
  EXPECT_FALSE(exit_barrier(*store, member(0, 3), 1ms, nobody));
  store->remove("rendezvous/leaving");
  EXPECT_FALSE(exit_barrier(*store, member(0, 3), kLong, [] { return true; })) << "it waits for none that is lost";
  store->remove("rendezvous/leaving");
  EXPECT_TRUE(exit_barrier(*store, member(1, 3), 1ms, nobody));
  EXPECT_TRUE(exit_barrier(*store, member(2, 3), 1ms, nobody));
  EXPECT_TRUE(exit_barrier(*store, member(0, 3), kLong, nobody));
}

TEST(Store, KeysOfAPrefixStoreAreKeptApartFromOthers) {
  const std::shared_ptr<Store> store = make_local_store();
  const std::shared_ptr<Store> inside = make_prefix_store(store, "job/");
  inside->set("a", "1");
  EXPECT_FALSE(store->has("a"));
  EXPECT_EQ(store->get("job/a", 0ms), "1");
  EXPECT_EQ(inside->add("n", 3), 3);
  EXPECT_EQ(inside->add("n", -1), 2);
  EXPECT_EQ(inside->get("n", 0ms), "2");
  EXPECT_TRUE(inside->remove("a"));
  EXPECT_FALSE(inside->remove("a"));
  EXPECT_FALSE(store->has("job/a"));
}

TEST(Rendezvous, WhatOthersSayIsPrintedEscapedAndCut) {
  const std::shared_ptr<Store> store = make_local_store();
  store->set("rendezvous/fault", "\x1b[31mforged\n" + std::string(100'000, 'x'));
  try {
    rendezvous(*store, member(1, 2), kLong);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("\\x1b[31mforged"));
    EXPECT_LT(std::string(error.what()).size(), 2000u);
  }
}

RankGroup ranks_of(int64_t world) {
  const RankGroup::Axis axis[] = {{world, 1}};
  return RankGroup(0, axis);
}

TEST(Peers, AreMetByAll) {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::future<void>> ranks;
  for (int64_t rank = 0; rank < 8; ++rank) {
    ranks.push_back(std::async(std::launch::async, [store, rank] {
      Peers peers(store, rank);
      peers.meet("here/", ranks_of(8), rank, kLong);
    }));
  }
  for (auto& rank : ranks) EXPECT_NO_THROW(rank.get());
}

template <class Body>
std::pair<std::string, std::string> error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return {status_name(error.status()), error.what()};
  }
  return {"OK", ""};
}

TEST(Peers, AreMetAlsoWhereTheLastEndsAsSoonAsItHasCome) {
  const std::shared_ptr<Store> store = make_local_store();
  Peers zero(store, 0), one(store, 1);
  auto first = std::async(std::launch::async, [&] { zero.meet("here/", ranks_of(2), 0, kLong); });
  while (!store->has("here/joined/0")) std::this_thread::yield();
  store->add("here/count", 1);
  one.leave(Peers::LeaveReason::gives_up);
  EXPECT_NO_THROW(first.get());
  EXPECT_EQ(zero.lost_since("here/", ranks_of(2), 0), 1);
}

TEST(Peers, OneThatHasLeftIsNotWaitedFor) {
  const std::shared_ptr<Store> store = make_local_store();
  Peers zero(store, 0), one(store, 1), two(store, 2);
  EXPECT_FALSE(zero.is_gone(2));
  two.leave(Peers::LeaveReason::done);
  EXPECT_TRUE(zero.is_gone(2));
  EXPECT_FALSE(zero.is_any_lost(3)) << "it has done its part";
  auto other =
      std::async(std::launch::async, [&] { return error_of([&] { one.meet("here/", ranks_of(3), 1, kLong); }); });
  const std::pair<std::string, std::string> expected{"PEER_LOST", "not joined by rank 2 (it has left the job)"};
  EXPECT_EQ(error_of([&] { zero.meet("here/", ranks_of(3), 0, kLong); }), expected);
  EXPECT_EQ(other.get(), expected) << "each rank that came gets the same answer";
  EXPECT_EQ(error_of([&] { zero.await("key", 2, kLong); }).first, "PEER_LOST");
  EXPECT_EQ(error_of([&] { zero.await("key", 1, 1ms); }).first, "TIMEOUT");
  two.leave(Peers::LeaveReason::gives_up);
  EXPECT_TRUE(zero.is_any_lost(3));
}

// After the barrier, a rank that is done may be gone while another is still being notified.
TEST(Peers, OneThatGivesUpAfterAMeetingIsLostAndOneThatIsDoneIsNot) {
  const std::shared_ptr<Store> store = make_local_store();
  Peers zero(store, 0), one(store, 1);
  EXPECT_FALSE(zero.lost_since("here/", ranks_of(2), 0));
  auto other = std::async(std::launch::async, [&] { one.meet("here/", ranks_of(2), 1, kLong); });
  zero.meet("here/", ranks_of(2), 0, kLong);
  other.get();
  one.leave(Peers::LeaveReason::done);
  EXPECT_FALSE(zero.lost_since("here/", ranks_of(2), 0));
  one.leave(Peers::LeaveReason::gives_up);
  EXPECT_EQ(zero.lost_since("here/", ranks_of(2), 0), 1);
}

TEST(Store, AKeyThatDoesNotComeIsATimeoutWithItsName) {
  const std::shared_ptr<Store> store = make_local_store();
  store->set("here", "1");
  const std::vector<std::string> keys = {"here", "there"};
  try {
    store->get_all(keys, 1ms);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(error.what(), HasSubstr("there"));
  }
}

}  // namespace
}  // namespace concord
