// Order: collectives after and before other work, on several streams, communicators and threads.
#include <atomic>
#include <thread>

#include "platform/conformance/collectives.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

constexpr Case kSum{CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 5000};

Case with_seed(Case what, uint32_t seed) {
  what.seed = seed;
  return what;
}

void enqueue(Context& t, Bench& bench, const Case& what) {
  const std::string call = what.describe();
  t.step(call.c_str());
  t.require_ok(bench.enqueue(what), call.c_str());
}

// The real input is copied into the send buffer after a gate and before the collective; a copy of the result is queued
// after it. A collective that ignores its stream reads rubbish, or writes too late.
void runs_in_stream_order(Context& t, const Case& what) {
  Stream stream(t);
  Bench bench(t, t.world_comm(), stream.get(), t.world(), t.rank());
  bench.run(what);  // sets up what a vendor sets up at the first call
  bench.prepare(with_seed(what, 2));
  const int64_t sent = bench.send().bytes();
  const int64_t received = bench.recv().bytes();
  DeviceMemory staged(t, sent);
  DeviceMemory consumed(t, received);
  const Bytes input = bench.send().read("send");
  staged.write(input);
  consumed.write(Bytes(static_cast<size_t>(received), 0));
  bench.send().write(Bytes(input.size(), 0x11));
  {
    Gate gate(t, stream.get());
    copy_async(t, bench.send().get(), staged.get(), sent, CONCORD_COPY_DEVICE_TO_DEVICE, stream.get());
    enqueue(t, bench, with_seed(what, 2));
    copy_async(t, consumed.get(), bench.recv().get(), received, CONCORD_COPY_DEVICE_TO_DEVICE, stream.get());
    gate.require_closed("the call of a collective");
    if (gate.holds()) linger();
    gate.open();
    synchronize(t, stream.get());
  }
  bench.check(with_seed(what, 2));
  if (consumed.read() != bench.recv().read("receive"))
    t.fail(what.describe() + ": work queued after it ran before it was done");
}

void consumer_on_another_stream(Context& t) {
  Stream producer(t);
  Stream consumer(t);
  Event done(t);
  Bench bench(t, t.world_comm(), producer.get(), t.world(), t.rank());
  bench.run(kSum);
  bench.prepare(with_seed(kSum, 2));
  const int64_t bytes = bench.recv().bytes();
  DeviceMemory consumed(t, bytes);
  consumed.write(Bytes(static_cast<size_t>(bytes), 0));
  Gate gate(t, producer.get());
  enqueue(t, bench, with_seed(kSum, 2));
  CHECK_OK(t.events().record(t.events().self, done.get(), producer.get()));
  CHECK_OK(t.streams().wait_event(t.streams().self, consumer.get(), done.get()));
  copy_async(t, consumed.get(), bench.recv().get(), bytes, CONCORD_COPY_DEVICE_TO_DEVICE, consumer.get());
  if (gate.holds()) {
    linger();
    CHECK(!is_done(t, consumer.get()), "a consumer after an event ran before the collective that precedes the event");
  }
  gate.open();
  synchronize(t, consumer.get());
  synchronize(t, producer.get());
  bench.check(with_seed(kSum, 2));
  CHECK(consumed.read() == bench.recv().read("receive"), "a consumer after an event did not see a collective's result");
}

// Rank 0 calls first and returns although no other rank has called yet.
void calls_return_at_once(Context& t) {
  Bench bench(t);
  bench.run(kSum);
  bench.prepare(with_seed(kSum, 2));
  if (t.rank() > 0) t.meet();
  enqueue(t, bench, with_seed(kSum, 2));
  if (t.rank() == 0) t.meet();
  synchronize(t, t.stream());
  bench.check(with_seed(kSum, 2));
}

void barrier_holds_everybody(Context& t) {
  constexpr int64_t kBytes = 4096;
  const concord_comm_table& c = t.comms();
  Stream stream(t);
  DeviceMemory memory(t, kBytes);
  fill(t, memory.get(), 1, kBytes, stream.get());
  CHECK_OK(c.barrier(c.self, t.world_comm(), stream.get()));
  synchronize(t, stream.get());
  const bool late = t.rank() == t.world() - 1;
  if (!late) {
    CHECK_OK(c.barrier(c.self, t.world_comm(), stream.get()));
    fill(t, memory.get(), 2, kBytes, stream.get());
    linger();
    CHECK(!is_done(t, stream.get()), "a stream was done before the last rank had reached its barrier");
    // What orders this look before the fill is the late rank's process, which the thread sanitizer does not see.
    if (!under_thread_sanitizer()) {
      CHECK(memory.read(1)[0] == 1, "work after a barrier ran before the last rank had reached it");
    }
  }
  t.meet();
  if (late) CHECK_OK(c.barrier(c.self, t.world_comm(), stream.get()));
  synchronize(t, stream.get());
  if (!late) CHECK(memory.read(1)[0] == 2, "work after a barrier did not run");
}

void one_communicator_on_two_streams(Context& t) {
  Stream first_stream(t);
  Stream second_stream(t);
  Bench first(t, t.world_comm(), first_stream.get(), t.world(), t.rank());
  Bench second(t, t.world_comm(), second_stream.get(), t.world(), t.rank());
  first.run(kSum);
  second.run(kSum);
  for (uint32_t round = 2; round < 12; round += 2) {
    first.prepare(with_seed(kSum, round));
    second.prepare(with_seed(kSum, round + 1));
    {
      Gate gate(t, first_stream.get());
      enqueue(t, first, with_seed(kSum, round));
      enqueue(t, second, with_seed(kSum, round + 1));
      gate.open_later(static_cast<int>(round) % 3);
      synchronize(t, second_stream.get());
      synchronize(t, first_stream.get());
    }
    first.check(with_seed(kSum, round));
    second.check(with_seed(kSum, round + 1));
  }
}

// A communicator of all ranks and one of some, each on its own stream, at the same time.
void overlapping_communicators(Context& t) {
  std::vector<int32_t> members;
  for (int32_t rank = 1; rank < t.world(); ++rank) members.push_back(rank);
  const bool is_member = t.rank() > 0;
  Comm part = Comm::split(t, t.world_comm(), is_member ? members : std::vector<int32_t>());
  Stream part_stream(t);
  Bench all(t);
  Bench some(t, part.get(), part_stream.get(), t.world() - 1, t.rank() - 1);
  for (uint32_t round = 1; round < 20; ++round) {
    all.prepare(with_seed(kSum, round));
    if (is_member) some.prepare(with_seed(kSum, round + 100));
    enqueue(t, all, with_seed(kSum, round));
    if (is_member) enqueue(t, some, with_seed(kSum, round + 100));
    synchronize(t, t.stream());
    if (is_member) synchronize(t, part_stream.get());
    all.check(with_seed(kSum, round));
    if (is_member) some.check(with_seed(kSum, round + 100));
  }
}

// One communicator's operation is held back on rank 0; another's must finish meanwhile.
void communicators_do_not_hold_each_other(Context& t) {
  Comm other = Comm::connect(t);
  Stream held_stream(t);
  Stream free_stream(t);
  Bench held(t, t.world_comm(), held_stream.get(), t.world(), t.rank());
  Bench free_one(t, other.get(), free_stream.get(), t.world(), t.rank());
  held.run(kSum);
  free_one.run(kSum);
  held.prepare(with_seed(kSum, 2));
  free_one.prepare(with_seed(kSum, 3));
  std::unique_ptr<Gate> gate;
  if (t.rank() == 0) gate = std::make_unique<Gate>(t, held_stream.get());
  enqueue(t, held, with_seed(kSum, 2));
  enqueue(t, free_one, with_seed(kSum, 3));
  CHECK(eventually([&] { return is_done(t, free_stream.get()); }), "a communicator waits for an operation of another");
  t.meet();
  if (gate != nullptr) gate->open();
  synchronize(t, free_stream.get());
  synchronize(t, held_stream.get());
  free_one.check(with_seed(kSum, 3));
  held.check(with_seed(kSum, 2));
}

// Even ranks queue on the first communicator and then on the second, odd ranks the other way round.
void opposite_orders_of_communicators(Context& t) {
  Comm other = Comm::connect(t);
  Stream other_stream(t);
  Bench first(t);
  Bench second(t, other.get(), other_stream.get(), t.world(), t.rank());
  first.run(kSum);
  second.run(kSum);
  for (uint32_t round = 1; round < 10; ++round) {
    first.prepare(with_seed(kSum, round));
    second.prepare(with_seed(kSum, round + 50));
    if (t.rank() % 2 == 0) enqueue(t, first, with_seed(kSum, round));
    enqueue(t, second, with_seed(kSum, round + 50));
    if (t.rank() % 2 == 1) enqueue(t, first, with_seed(kSum, round));
    synchronize(t, t.stream());
    synchronize(t, other_stream.get());
    first.check(with_seed(kSum, round));
    second.check(with_seed(kSum, round + 50));
  }
}

void threads_with_their_own_communicators(Context& t) {
  std::vector<Comm> comms;
  std::vector<std::unique_ptr<Bench>> benches;
  std::vector<Stream> streams;
  for (int i = 0; i < 2; ++i) {
    comms.push_back(Comm::connect(t));
    streams.emplace_back(t);
  }
  for (size_t i = 0; i < 2; ++i) {
    benches.push_back(std::make_unique<Bench>(t, comms[i].get(), streams[i].get(), t.world(), t.rank()));
    benches[i]->run(kSum);
  }
  run_threads(2, [&](int thread) {
    CHECK_OK(t.device_table().set_current(t.device_table().self, t.device()));
    for (uint32_t round = 0; round < (t.quick() ? 10u : 40u); ++round) {
      Case what = with_seed(kSum, round + 100 * static_cast<uint32_t>(thread));
      what.count = 100 + 700 * static_cast<int64_t>(round);
      benches[static_cast<size_t>(thread)]->run(what);
    }
  });
}

void many_operations_in_flight(Context& t) {
  constexpr int kInFlight = 32;
  std::vector<std::unique_ptr<Bench>> benches;
  for (uint32_t i = 0; i < kInFlight; ++i) {
    benches.push_back(std::make_unique<Bench>(t));
    benches.back()->prepare(with_seed(kSum, i));
  }
  for (uint32_t i = 0; i < kInFlight; ++i) enqueue(t, *benches[i], with_seed(kSum, i));
  synchronize(t, t.stream());
  for (uint32_t i = 0; i < kInFlight; ++i) benches[i]->check(with_seed(kSum, i));
}

void destroy_waits_for_operations(Context& t) {
  Comm comm = Comm::connect(t);
  Stream stream(t);
  Bench bench(t, comm.get(), stream.get(), t.world(), t.rank());
  bench.run(kSum);
  bench.prepare(with_seed(kSum, 2));
  Gate gate(t, stream.get());
  enqueue(t, bench, with_seed(kSum, 2));
  gate.open_later(30);
  CHECK_OK(comm.destroy());
  bench.check(with_seed(kSum, 2));  // without a synchronize
  synchronize(t, stream.get());
}

Test order_test(std::string name, int least, int most, std::function<void(Context&)> body) {
  Test test{"comm", std::move(name), std::move(body)};
  test.least_world = least;
  test.most_world = most;
  test.deadline_s = 30;
  return test;
}

}  // namespace

void add_comm_order_tests(Registry& registry) {
  for (const concord_comm_op operation :
       {CONCORD_COMM_ALL_REDUCE, CONCORD_COMM_REDUCE, CONCORD_COMM_BROADCAST, CONCORD_COMM_ALL_GATHER,
        CONCORD_COMM_REDUCE_SCATTER, CONCORD_COMM_ALL_TO_ALL}) {
    const Case what{operation, CONCORD_DTYPE_F32, reduces(operation) ? CONCORD_REDUCE_SUM : 0, 5000};
    registry.add(order_test(text("%sRunsInTheOrderOfItsStream", name_of_operation(operation)), 1, 3,
                            [what](Context& t) { runs_in_stream_order(t, what); }));
  }
  registry.add(order_test("AConsumerOnAnotherStreamSeesTheResult", 1, 3, consumer_on_another_stream));
  registry.add(order_test("CallsReturnBeforeThePeersHaveCalled", 2, 4, calls_return_at_once));
  registry.add(order_test("ABarrierHoldsWorkUntilEveryRankHasReachedIt", 2, 4, barrier_holds_everybody));
  registry.add(order_test("OneCommunicatorOnTwoStreamsKeepsTheOrderOfItsCalls", 1, 4, one_communicator_on_two_streams));
  Test overlapping = order_test("OverlappingCommunicatorsKeepApart", 2, kAnyWorld, overlapping_communicators);
  overlapping.needs = {CONCORD_CAP_COMM_SPLIT};
  registry.add(overlapping);
  Test held = order_test("CommunicatorsDoNotHoldEachOtherBack", 2, 4, communicators_do_not_hold_each_other);
  held.needs = {CONCORD_CAP_STREAM_HOST_FUNCTIONS};
  registry.add(held);
  registry.add(order_test("CommunicatorsInOppositeOrdersDoNotDeadlock", 2, 4, opposite_orders_of_communicators));
  registry.add(order_test("TwoThreadsUseTwoCommunicators", 1, 4, threads_with_their_own_communicators));
  registry.add(order_test("ManyOperationsInFlightKeepTheirOrder", 1, kAnyWorld, many_operations_in_flight));
  registry.add(order_test("DestroyWaitsForQueuedOperations", 1, 3, destroy_waits_for_operations));
}

}  // namespace concord::conformance
