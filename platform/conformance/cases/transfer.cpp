// Transfers of different sizes between ranks: all_to_all_v and batch_p2p, by value.
#include <algorithm>
#include <cstring>

#include "platform/conformance/collectives.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

// What |from| sends to |to| as its |number|-th message: any rank can compute it.
Bytes message(concord_dtype dtype, int from, int to, int number, int64_t count) {
  Case what{CONCORD_COMM_P2P, dtype};
  what.seed = static_cast<uint32_t>(1000 * from + 10 * to + number);
  Bytes bytes(static_cast<size_t>(count * size_of(dtype)));
  make_input(what, 1, from, 0, count, bytes.data());
  return bytes;
}

void require_same(Context& t, const Bytes& got, const Bytes& wanted, const std::string& what) {
  if (got == wanted) return;
  const auto at = std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin();
  t.fail(what + text(": byte %lld of %zu is wrong", static_cast<long long>(at), wanted.size()));
}

// A different count for every pair, zero for some.
int64_t pair_count(int from, int to, int64_t base) { return (from + 2 * to) % 3 == 1 ? 0 : base + 5 * from + 3 * to; }

struct Layout {
  std::vector<int64_t> counts;
  std::vector<int64_t> offsets;  // with gaps, and not in rank order
  int64_t total = 0;
};

Layout layout(const Context& t, bool sending, int64_t base) {
  const auto world = static_cast<size_t>(t.world());
  Layout result{std::vector<int64_t>(world), std::vector<int64_t>(world), 2};
  for (size_t i = 0; i < world; ++i) {
    const size_t peer = world - 1 - i;
    const int other = static_cast<int>(peer);
    result.counts[peer] = sending ? pair_count(t.rank(), other, base) : pair_count(other, t.rank(), base);
    result.offsets[peer] = result.total;
    result.total += result.counts[peer] + 3;
  }
  return result;
}

void all_to_all_v_moves(Context& t, concord_dtype dtype, int64_t base) {
  const concord_comm_table& c = t.comms();
  const int64_t size = size_of(dtype);
  Layout out = layout(t, true, base);
  Layout in = layout(t, false, base);
  const Layout wanted_in = in;
  Bytes image(static_cast<size_t>(out.total * size), 0);
  Bytes wanted(static_cast<size_t>(in.total * size), Guarded::kPoison);
  for (int peer = 0; peer < t.world(); ++peer) {
    const auto p = static_cast<size_t>(peer);
    const Bytes sent = message(dtype, t.rank(), peer, 0, out.counts[p]);
    std::copy(sent.begin(), sent.end(), image.begin() + out.offsets[p] * size);
    const Bytes received = message(dtype, peer, t.rank(), 0, in.counts[p]);
    std::copy(received.begin(), received.end(), wanted.begin() + in.offsets[p] * size);
  }
  Guarded send(t, out.total * size, size);
  Guarded recv(t, in.total * size);
  send.write(image);
  CHECK_OK(c.all_to_all_v(c.self, t.world_comm(), send.get(), out.counts.data(), out.offsets.data(), recv.get(),
                          in.counts.data(), in.offsets.data(), dtype, t.stream()));
  std::fill(out.counts.begin(), out.counts.end(), -7);  // the arrays were read before the call returned
  std::fill(in.offsets.begin(), in.offsets.end(), int64_t{1} << 40);
  synchronize(t, t.stream());
  require_same(t, recv.read("receive"), wanted,
               text("AllToAllV of %s, %lld or more elements per pair", name_of(dtype), static_cast<long long>(base)));
  require_same(t, send.read("send"), image, "the send buffer of AllToAllV");
}

void require_transfer_support(Context& t, concord_comm_op operation, concord_dtype dtype) {
  Bench(t).require_supported({operation, dtype});
}

void all_to_all_v_matches(Context& t, concord_dtype dtype) {
  require_transfer_support(t, CONCORD_COMM_ALL_TO_ALL_V, dtype);
  for (const int64_t base : {0, 1, 100, 3000}) all_to_all_v_moves(t, dtype, base);
}

void all_to_all_v_large(Context& t) {
  for (const int64_t base : {16384, 65535, 300000}) all_to_all_v_moves(t, CONCORD_DTYPE_F32, base);
}

// One rank's side of a batch: buffers that are sent and received, and their check.
class Batch {
 public:
  Batch(Context& t, concord_comm comm, int rank) : t_(t), comm_(comm), rank_(rank) {}

  void send(int peer, concord_dtype dtype, int64_t count, int number) {
    const Bytes bytes = message(dtype, rank_, peer, number, count);
    buffers_.push_back(std::make_unique<Guarded>(t_, static_cast<int64_t>(bytes.size())));
    buffers_.back()->write(bytes);
    expected_.push_back(bytes);
    items_.push_back({CONCORD_P2P_SEND, peer, buffers_.back()->get(), count, dtype, 0});
  }

  void receive(int peer, concord_dtype dtype, int64_t count, int number) {
    const int64_t size = size_of(dtype);
    buffers_.push_back(std::make_unique<Guarded>(t_, count * size, size));
    expected_.push_back(message(dtype, peer, rank_, number, count));
    items_.push_back({CONCORD_P2P_RECV, peer, buffers_.back()->get(), count, dtype, 0});
  }

  void enqueue(concord_stream stream) {
    Context& t = t_;
    std::vector<concord_p2p_item> items = items_;
    CHECK_OK(t.comms().batch_p2p(t.comms().self, comm_, items.data(), static_cast<int64_t>(items.size()), stream));
    items.assign(items.size(), concord_p2p_item{99, 99, nullptr, -1, 99, 99});  // it was read before the call returned
  }

  void check() {
    for (size_t i = 0; i < items_.size(); ++i) {
      const char* kind = items_[i].kind == CONCORD_P2P_SEND ? "send" : "receive";
      require_same(t_, buffers_[i]->read(kind), expected_[i],
                   text("item %zu of a batch, %s with rank %d, %lld elements of %s", i, kind, items_[i].peer,
                        static_cast<long long>(items_[i].count), name_of(items_[i].dtype)));
    }
  }

 private:
  Context& t_;
  concord_comm comm_;
  int rank_;
  std::vector<concord_p2p_item> items_;
  std::vector<std::unique_ptr<Guarded>> buffers_;
  std::vector<Bytes> expected_;
};

void ring(Context& t, concord_dtype dtype, int64_t count) {
  Batch batch(t, t.world_comm(), t.rank());
  const int next = (t.rank() + 1) % t.world();
  const int previous = (t.rank() + t.world() - 1) % t.world();
  batch.send(next, dtype, count, 0);
  batch.receive(previous, dtype, count, 0);
  batch.enqueue(t.stream());
  synchronize(t, t.stream());
  batch.check();
}

void p2p_matches(Context& t, concord_dtype dtype) {
  require_transfer_support(t, CONCORD_COMM_P2P, dtype);
  for (const int64_t count : {0, 1, 3, 1021, 4099}) ring(t, dtype, count);
}

void p2p_around_powers_of_two(Context& t) {
  for (int power = 6; power <= (t.quick() ? 13 : 20); ++power) {
    for (const int64_t around : {-1, 0, 1}) ring(t, CONCORD_DTYPE_F32, (int64_t{1} << power) + around);
  }
}

enum class Order { kSendsFirst, kReceivesFirst, kOpposite };

// All ranks list their sends first, or their receives, or one rank this and the next that; large messages cannot be
// buffered: no order may matter.
void orders_do_not_deadlock(Context& t) {
  for (const int64_t count : {1, 1000, 500000}) {
    for (const Order order : {Order::kSendsFirst, Order::kReceivesFirst, Order::kOpposite}) {
      Batch batch(t, t.world_comm(), t.rank());
      const auto sends = [&] {
        for (int i = 1; i < t.world(); ++i) batch.send((t.rank() + i) % t.world(), CONCORD_DTYPE_F32, count, i);
      };
      const auto receives = [&] {
        for (int i = 1; i < t.world(); ++i) {
          const int peer = (t.rank() + t.world() - i) % t.world();
          batch.receive(peer, CONCORD_DTYPE_F32, count, i);
        }
      };
      const bool sends_first = order == Order::kSendsFirst || (order == Order::kOpposite && t.rank() % 2 == 0);
      if (sends_first) sends();
      receives();
      if (!sends_first) sends();
      batch.enqueue(t.stream());
      synchronize(t, t.stream());
      batch.check();
    }
  }
}

// Several messages between the same two ranks, of different sizes and types, in one batch and across batches.
void messages_keep_their_order(Context& t) {
  constexpr int kMessages = 6;
  static constexpr concord_dtype kTypes[] = {CONCORD_DTYPE_F32, CONCORD_DTYPE_U8, CONCORD_DTYPE_F64};
  const int next = (t.rank() + 1) % t.world();
  const int previous = (t.rank() + t.world() - 1) % t.world();
  Batch first(t, t.world_comm(), t.rank());
  Batch second(t, t.world_comm(), t.rank());
  Batch third(t, t.world_comm(), t.rank());
  for (int i = 0; i < kMessages; ++i) {
    const concord_dtype dtype = kTypes[i % 3];
    const int64_t count = 10 + 40 * i;
    (i < 4 ? first : second).send(next, dtype, count, i);  // four here and two there,
    (i < 4 ? first : second).receive(previous, dtype, count, i);
    third.send(next, dtype, count, i + 10);
    third.receive(previous, dtype, count, i + 10);
  }
  for (Batch* batch : {&first, &second, &third}) batch->enqueue(t.stream());
  synchronize(t, t.stream());
  for (Batch* batch : {&first, &second, &third}) batch->check();
}

void batches_may_be_empty_or_one_sided(Context& t) {
  Batch empty(t, t.world_comm(), t.rank());
  empty.enqueue(t.stream());
  Batch one_sided(t, t.world_comm(), t.rank());
  if (t.rank() == 0) one_sided.send(t.world() - 1, CONCORD_DTYPE_BF16, 333, 0);
  if (t.rank() == t.world() - 1) one_sided.receive(0, CONCORD_DTYPE_BF16, 333, 0);
  one_sided.enqueue(t.stream());
  synchronize(t, t.stream());
  one_sided.check();
}

void a_rank_sends_to_itself(Context& t) {
  Batch batch(t, t.world_comm(), t.rank());
  batch.send(t.rank(), CONCORD_DTYPE_F32, 1000, 0);
  batch.receive(t.rank(), CONCORD_DTYPE_F32, 1000, 0);
  batch.receive(t.rank(), CONCORD_DTYPE_F32, 7, 1);
  batch.send(t.rank(), CONCORD_DTYPE_F32, 7, 1);
  batch.enqueue(t.stream());
  synchronize(t, t.stream());
  batch.check();
}

void transfers_and_collectives_mix(Context& t) {
  Bench bench(t);
  for (int round = 0; round < 10; ++round) {
    bench.run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 100 + round});
    ring(t, CONCORD_DTYPE_F32, 200 + round);
    CHECK_OK(t.comms().barrier(t.comms().self, t.world_comm(), t.stream()));
    bench.run({CONCORD_COMM_BROADCAST, CONCORD_DTYPE_F32, 0, 50, round % t.world()});
  }
}

Test on_worlds(std::string name, int least, std::function<void(Context&)> body) {
  Test test{"comm", std::move(name), std::move(body)};
  test.least_world = least;
  test.most_world = kAnyWorld;
  return test;
}

}  // namespace

void add_transfer_tests(Registry& registry) {
  for (const concord_dtype dtype : kAllDtypes) {
    registry.add(on_worlds(text("AllToAllVOf%sMovesEveryBitAndLeavesTheGaps", name_of(dtype)), 1,
                           [dtype](Context& t) { all_to_all_v_matches(t, dtype); }));
    registry.add(
        on_worlds(text("P2pOf%sMovesEveryBit", name_of(dtype)), 2, [dtype](Context& t) { p2p_matches(t, dtype); }));
  }
  Test large = on_worlds("AllToAllVIsRightWhenLarge", 1, all_to_all_v_large);
  large.cost = Cost::kFull;
  registry.add(large);
  registry.add(on_worlds("P2pIsRightAroundEveryPowerOfTwo", 2, p2p_around_powers_of_two));
  registry.add(on_worlds("P2pInAnyOrderDoesNotDeadlock", 2, orders_do_not_deadlock));
  registry.add(on_worlds("P2pMessagesKeepTheirOrderAcrossBatches", 2, messages_keep_their_order));
  registry.add(on_worlds("P2pBatchesMayBeEmptyOrOneSided", 2, batches_may_be_empty_or_one_sided));
  registry.add(on_worlds("TransfersAndCollectivesMix", 2, transfers_and_collectives_mix));
  Test self = on_worlds("ARankSendsToItself", 1, a_rank_sends_to_itself);
  self.needs = {CONCORD_CAP_COMM_P2P_SELF};
  registry.add(self);
}

}  // namespace concord::conformance
