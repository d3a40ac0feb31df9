// Point-to-point transfers by value and by order.
#include "backends/shm/channels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "backends/shm/testing/ranks.hpp"
#include "backends/shm/testing/values.hpp"

namespace concord::shm::testing {
namespace {

constexpr int64_t kLarge = 3 << 20;  // more than any ring holds

concord_p2p_item send_item(int peer, const Buffer& buffer, concord_dtype dtype = CONCORD_DTYPE_U8) {
  return {CONCORD_P2P_SEND,
          peer,
          const_cast<std::byte*>(buffer.data()),
          static_cast<int64_t>(buffer.size()) / sdk::dtype_size(dtype),
          dtype,
          0};
}

concord_p2p_item recv_item(int peer, Buffer& buffer, concord_dtype dtype = CONCORD_DTYPE_U8) {
  return {
      CONCORD_P2P_RECV, peer, buffer.data(), static_cast<int64_t>(buffer.size()) / sdk::dtype_size(dtype), dtype, 0};
}

void run(Communicator& comm, const std::vector<concord_p2p_item>& items) { comm.batch_p2p(items); }

Buffer message(int from, int to, int64_t bytes, int number = 0) {
  return raw_input(from * 100 + to, bytes, static_cast<uint64_t>(number));
}

TEST(ChannelsTest, MessagesOfEveryTypeAndSizeArrive) {
  in_threads(2, [](Communicator& comm) {
    const int64_t ring = Geometry(2).channel_bytes;
    for (const concord_dtype dtype : kAllTypes) {
      const int64_t size = sdk::dtype_size(dtype);
      for (const int64_t bytes :
           {int64_t{0}, size, 3 * size, 1021 * size, ring - 16, ring, ring + 16, 5 * ring + 8 * size}) {
        const Buffer out = message(comm.rank(), 1 - comm.rank(), bytes, dtype);
        Buffer in(out.size());
        run(comm, {send_item(1 - comm.rank(), out, dtype), recv_item(1 - comm.rank(), in, dtype)});
        EXPECT_TRUE(in == message(1 - comm.rank(), comm.rank(), bytes, dtype))
            << sdk::dtype_name(dtype) << " " << bytes;
      }
    }
  });
}

TEST(ChannelsTest, NoOrderOfSendsAndReceivesDeadlocks) {
  in_threads(2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    for (const bool rank_0_sends_first : {false, true}) {
      for (const bool rank_1_sends_first : {false, true}) {
        const Buffer out = message(comm.rank(), peer, kLarge);
        Buffer in(out.size());
        std::vector<concord_p2p_item> items = {send_item(peer, out), recv_item(peer, in)};
        if (!(comm.rank() == 0 ? rank_0_sends_first : rank_1_sends_first)) std::swap(items[0], items[1]);
        run(comm, items);
        EXPECT_TRUE(in == message(peer, comm.rank(), kLarge));
      }
    }
  });
}

TEST(ChannelsTest, TheNthSendMeetsTheNthReceiveAcrossBatches) {
  in_threads(2, [](Communicator& comm) {
    const std::vector<int64_t> sizes = {100, 0, 70000, 1, kLarge, 16, 15, 17, 300000};
    if (comm.rank() == 0) {  // one batch with all
      std::vector<Buffer> out;
      std::vector<concord_p2p_item> items;
      for (size_t i = 0; i < sizes.size(); ++i) out.push_back(message(0, 1, sizes[i], static_cast<int>(i)));
      for (const Buffer& buffer : out) items.push_back(send_item(1, buffer));
      run(comm, items);
    } else {  // a batch each
      for (size_t i = 0; i < sizes.size(); ++i) {
        Buffer in(static_cast<size_t>(sizes[i]));
        run(comm, {recv_item(0, in)});
        EXPECT_TRUE(in == message(0, 1, sizes[i], static_cast<int>(i))) << i;
      }
    }
  });
}

TEST(ChannelsTest, ASmallSendIsDoneBeforeItsReceiveBegins) {
  in_threads(2, [](Communicator& comm) {
    Buffer in(1000);
    if (comm.rank() == 0) run(comm, {send_item(1, message(0, 1, 1000))});
    comm.barrier();  // rank 0 gets here without the receive
    if (comm.rank() == 1) {
      run(comm, {recv_item(0, in)});
      EXPECT_TRUE(in == message(0, 1, 1000));
    }
  });
}

// Every rank exchanges several messages with every rank, itself included, in its own order.
void exchange_with_all(Communicator& comm, int64_t scale) {
  constexpr int kMessages = 3;
  std::vector<Buffer> out;
  std::vector<Buffer> in;
  std::vector<concord_p2p_item> sends;
  std::vector<concord_p2p_item> receives;
  const auto bytes = [&](int from, int to, int number) { return scale * ((from + 2 * to + number) % 5) + from; };
  for (int peer = 0; peer < comm.size(); ++peer) {
    for (int i = 0; i < kMessages; ++i) {
      out.push_back(message(comm.rank(), peer, bytes(comm.rank(), peer, i), i));
      in.emplace_back(static_cast<size_t>(bytes(peer, comm.rank(), i)));
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    sends.push_back(send_item(static_cast<int>(i) / kMessages, out[i]));
    receives.push_back(recv_item(static_cast<int>(i) / kMessages, in[i]));
  }
  std::vector<concord_p2p_item> items = comm.rank() % 2 == 0 ? sends : receives;
  const auto& rest = comm.rank() % 2 == 0 ? receives : sends;
  items.insert(items.end(), rest.begin(), rest.end());
  run(comm, items);
  for (size_t i = 0; i < in.size(); ++i) {
    const int peer = static_cast<int>(i) / kMessages;
    const int number = static_cast<int>(i) % kMessages;
    EXPECT_TRUE(in[i] == message(peer, comm.rank(), bytes(peer, comm.rank(), number), number))
        << "from " << peer << ", message " << number;
  }
}

TEST(ChannelsTest, AllRanksExchangeWithAllAtOnce) {
  for (const int world : {1, 2, 3, 4, 8}) {
    in_threads(world, [](Communicator& comm) {
      for (const int64_t scale : {1, 1000, 100000}) exchange_with_all(comm, scale);
    });
  }
}

TEST(ChannelsTest, AllRanksExchangeWithAllBetweenRealProcesses) {
  in_processes(4, [](Communicator& comm) {
    for (const int64_t scale : {1, 1000, 100000}) exchange_with_all(comm, scale);
  });
}

TEST(ChannelsTest, TransfersAndCollectivesDoNotDisturbEachOther) {
  in_threads(3, [](Communicator& comm) {
    for (int i = 0; i < 20; ++i) {
      exchange_with_all(comm, 500);
      int64_t value = comm.rank() + i;
      comm.all_reduce(&value, &value, 1, CONCORD_DTYPE_I64, CONCORD_REDUCE_SUM);
      EXPECT_EQ(value, 3 + 3 * i);
      if (comm.rank() == i % 3) run(comm, {send_item((i + 1) % 3, message(0, 0, 40, i))});
      comm.barrier();
      if (comm.rank() == (i + 1) % 3) {
        Buffer in(40);
        run(comm, {recv_item(i % 3, in)});
        EXPECT_TRUE(in == message(0, 0, 40, i));
      }
    }
  });
}

TEST(ChannelsTest, AnEmptyBatchDoesNothing) {
  in_threads(2, [](Communicator& comm) { run(comm, {}); });
}

TEST(ChannelsTest, AReceiveOfAnotherCountOrTypeIsAnErrorThatNamesBoth) {
  for (const auto& [count, dtype] : {std::pair<int64_t, concord_dtype>{7, CONCORD_DTYPE_F32}, {8, CONCORD_DTYPE_I32}}) {
    in_threads(2, [count = count, dtype = dtype](Communicator& comm) {
      Buffer data(1000);
      const concord_p2p_item send{CONCORD_P2P_SEND, 1, data.data(), 8, CONCORD_DTYPE_F32, 0};
      const concord_p2p_item receive{CONCORD_P2P_RECV, 0, data.data(), count, dtype, 0};
      const Caught caught = failure_of([&] {
        comm.batch_p2p({comm.rank() == 0 ? &send : &receive, 1});
        comm.barrier();  // where the sender hears of it
      });
      EXPECT_EQ(caught.status, CONCORD_STATUS_INVALID_ARGUMENT) << caught.text;
      EXPECT_NE(caught.text.find("rank 0 sent f32 x 8 to rank 1"), std::string::npos) << caught.text;
      const std::string receives =
          sdk::text("receives %s x %lld", sdk::dtype_name(dtype), static_cast<long long>(count));
      EXPECT_NE(caught.text.find(receives), std::string::npos) << caught.text;
    });
  }
}

TEST(ChannelsTest, ASendToOneselfNeedsItsReceiveInTheSameBatch) {
  in_threads(1, [](Communicator& comm) {
    Buffer data(16);
    Buffer other(12);
    EXPECT_EQ(failure_of([&] { run(comm, {send_item(0, data)}); }).status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(failure_of([&] { run(comm, {send_item(0, data), recv_item(0, other)}); }).status,
              CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_EQ(comm.error(nullptr), CONCORD_STATUS_OK);
  });
}

}  // namespace
}  // namespace concord::shm::testing
