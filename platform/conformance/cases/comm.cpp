// The comm table apart from values: creating, splitting and destroying communicators, and invalid arguments.
#include <algorithm>

#include "platform/conformance/collectives.h"
#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

void ids_are_unique(Context& t) {
  const concord_comm_table& c = t.comms();
  int64_t bytes = 0;
  CHECK_OK(c.unique_id_size(c.self, &bytes));
  CHECK(bytes >= 16 && bytes <= 1 << 16, "a unique id has %lld bytes", static_cast<long long>(bytes));
  std::vector<Bytes> ids;
  for (int i = 0; i < 8; ++i) {
    Bytes id(static_cast<size_t>(bytes) + 16, 0xa5);
    CHECK_OK(c.unique_id_create(c.self, id.data(), bytes));
    CHECK(std::count(id.begin() + bytes, id.end(), 0xa5) == 16, "unique_id_create wrote past the end of the id");
    CHECK(std::find(ids.begin(), ids.end(), id) == ids.end(), "unique_id_create returned the same id twice");
    ids.push_back(id);
  }
}

int32_t rank_of(Context& t, concord_comm comm) {
  int32_t rank = -1;
  CHECK_OK(t.comms().rank(t.comms().self, comm, &rank));
  return rank;
}

int32_t size_of_comm(Context& t, concord_comm comm) {
  int32_t size = -1;
  CHECK_OK(t.comms().size(t.comms().self, comm, &size));
  return size;
}

void require_no_error(Context& t, concord_comm comm) {
  concord_status error = -1;
  CHECK_OK(t.comms().async_error(t.comms().self, comm, &error));
  CHECK(error == CONCORD_STATUS_OK, "comm.async_error returned %s for a healthy communicator",
        status_text(error).c_str());
}

void ranks_and_sizes(Context& t) {
  Comm comm = Comm::connect(t);
  CHECK(rank_of(t, comm.get()) == t.rank(), "on rank %d comm.rank returned %d", t.rank(), rank_of(t, comm.get()));
  CHECK(size_of_comm(t, comm.get()) == t.world(), "a communicator of %d ranks reports %d", t.world(),
        size_of_comm(t, comm.get()));
  require_no_error(t, comm.get());
  Bench(t, comm.get(), t.stream(), t.world(), t.rank())
      .run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 10});
  require_no_error(t, comm.get());
  CHECK_OK(comm.destroy());
}

// The caller's config struct may be null, or of an older and smaller version.
void config_is_optional(Context& t) {
  const concord_comm_table& c = t.comms();
  (void)t.world_comm();
  for (const bool small : {false, true}) {
    const std::string id = shared_unique_id(t);
    concord_comm_config config = comm_config("small", 12345);
    config.struct_size = offsetof(concord_comm_config, name);
    config.name = reinterpret_cast<const char*>(1);  // beyond the size that is stated: not to be read
    concord_comm comm = nullptr;
    CHECK_OK(c.init(c.self, t.device(), t.world(), t.rank(), id.data(), static_cast<int64_t>(id.size()),
                    small ? &config : nullptr, &comm));
    Bench(t, comm, t.stream(), t.world(), t.rank())
        .run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 10});
    CHECK_OK(c.destroy(c.self, comm));
  }
}

// Runs collectives on |comm|, whose member number |place| of |size| this rank is.
void use_group(Context& t, concord_comm comm, int size, int place) {
  CHECK(rank_of(t, comm) == place, "member %d of a split communicator has rank %d", place, rank_of(t, comm));
  CHECK(size_of_comm(t, comm) == size, "a split communicator of %d ranks reports %d", size, size_of_comm(t, comm));
  Bench bench(t, comm, t.stream(), size, place);
  for (uint32_t seed = 1; seed < 4; ++seed) {
    Case what{CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 1000};
    what.seed = seed;
    bench.run(what);
    what.operation = CONCORD_COMM_ALL_GATHER;
    bench.run(what);
    what.operation = CONCORD_COMM_BROADCAST;
    what.root = size - 1;
    bench.run(what);
  }
}

int place_in(const std::vector<int32_t>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

void split_reverses(Context& t) {
  std::vector<int32_t> ranks;
  for (int32_t rank = t.world() - 1; rank >= 0; --rank) ranks.push_back(rank);
  Comm reversed = Comm::split(t, t.world_comm(), ranks);
  use_group(t, reversed.get(), t.world(), place_in(ranks, t.rank()));
  CHECK_OK(reversed.destroy());
}

// Even and odd ranks apart, at the same time.
void split_makes_disjoint_groups(Context& t) {
  std::vector<int32_t> ranks;
  for (int32_t rank = t.rank() % 2; rank < t.world(); rank += 2) ranks.push_back(rank);
  Comm mine = Comm::split(t, t.world_comm(), ranks);
  use_group(t, mine.get(), static_cast<int>(ranks.size()), place_in(ranks, t.rank()));
  CHECK_OK(mine.destroy());
  Bench(t).run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 100});
}

void split_leaves_others_out(Context& t) {
  std::vector<int32_t> members;
  for (int32_t rank = 1; rank < t.world(); ++rank) members.push_back(rank);
  const bool is_member = t.rank() > 0;
  Comm group = Comm::split(t, t.world_comm(), is_member ? members : std::vector<int32_t>());
  if (is_member) use_group(t, group.get(), t.world() - 1, t.rank() - 1);
  Bench(t).run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 100});
}

void split_of_a_split(Context& t) {
  if (t.capability(CONCORD_CAP_COMM_SPLIT) < 2) t.skip_unsupported("comm.split works only on the first communicator");
  std::vector<int32_t> all;
  for (int32_t rank = 0; rank < t.world(); ++rank) all.push_back((rank + 1) % t.world());
  Comm rotated = Comm::split(t, t.world_comm(), all);
  const int place = place_in(all, t.rank());
  std::vector<int32_t> front;
  for (int32_t i = 0; i < t.world() - 1; ++i) front.push_back(i);
  const bool is_member = place < t.world() - 1;
  Comm group = Comm::split(t, rotated.get(), is_member ? front : std::vector<int32_t>());
  if (is_member) use_group(t, group.get(), t.world() - 1, place);
}

void children_outlive_parents(Context& t) {
  Comm parent = Comm::connect(t);
  std::vector<int32_t> all;
  for (int32_t rank = 0; rank < t.world(); ++rank) all.push_back(rank);
  Comm child = Comm::split(t, parent.get(), all);
  CHECK_OK(parent.destroy());
  use_group(t, child.get(), t.world(), t.rank());
}

void wrong_lists_are_refused(Context& t) {
  const concord_comm_table& c = t.comms();
  const std::vector<std::vector<int32_t>> lists = {{0, 0}, {0, t.world()}, {-1, 0}};
  for (const std::vector<int32_t>& ranks : lists) {
    concord_comm comm = nullptr;
    CHECK_STATUS(CONCORD_STATUS_INVALID_ARGUMENT,
                 c.split(c.self, t.world_comm(), ranks.data(), static_cast<int32_t>(ranks.size()), nullptr, &comm));
  }
  Bench(t).run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 100});
}

void reserved_field_of_a_split_is_refused(Context& t) {
  const concord_comm_table& c = t.comms();
  std::vector<int32_t> all;
  for (int32_t rank = 0; rank < t.world(); ++rank) all.push_back(rank);
  concord_comm_config config = comm_config("refused", 2000);
  config.reserved = 1;
  concord_comm comm = nullptr;
  CHECK_STATUS(CONCORD_STATUS_INVALID_ARGUMENT,
               c.split(c.self, t.world_comm(), all.data(), static_cast<int32_t>(all.size()), &config, &comm));
}

void refusals_do_no_harm(Context& t) {
  require_refused(t, collective_refusals(t, t.world_comm(), t.stream()));
  require_refused(t, transfer_refusals(t, t.world_comm(), t.stream()));
  require_no_error(t, t.world_comm());
  synchronize(t, t.stream());
  Bench(t).run({CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 100});
}

void many_communicators_at_once(Context& t) {
  std::vector<Comm> comms;
  for (int i = 0; i < 6; ++i) comms.push_back(Comm::connect(t));
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < comms.size(); ++i) {
      Case what{CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, 100};
      what.seed = static_cast<uint32_t>(10 * i) + static_cast<uint32_t>(round);
      Bench(t, comms[i].get(), t.stream(), t.world(), t.rank()).run(what);
    }
  }
}

Test comm_test(std::string name, int least, int most, std::function<void(Context&)> body) {
  Test test{"comm", std::move(name), std::move(body)};
  test.least_world = least;
  test.most_world = most;
  return test;
}

Test split_test(std::string name, int least, std::function<void(Context&)> body) {
  Test test = comm_test(std::move(name), least, kAnyWorld, std::move(body));
  test.needs = {CONCORD_CAP_COMM_SPLIT};
  return test;
}

}  // namespace

void add_comm_tests(Registry& registry) {
  registry.add({"comm", "UniqueIdsAreUniqueAndOfTheStatedSize", ids_are_unique});
  registry.add(
      {"comm", "WrongSetUpArgumentsAreRefused", [](Context& t) { require_refused(t, comm_setup_refusals(t)); }});
  registry.add(comm_test("ACommunicatorKnowsItsRankAndSize", 1, kAnyWorld, ranks_and_sizes));
  registry.add(comm_test("TheConfigMayBeNullOrOfAnOlderSize", 1, 3, config_is_optional));
  registry.add(comm_test("RefusedCallsDoNoHarm", 1, 4, refusals_do_no_harm));
  registry.add(comm_test("SixCommunicatorsAtOnceKeepApart", 1, kAnyWorld, many_communicators_at_once));
  registry.add(split_test("SplitGivesRanksTheOrderOfTheList", 1, split_reverses));
  registry.add(split_test("SplitMakesDisjointGroupsAtOnce", 2, split_makes_disjoint_groups));
  registry.add(split_test("SplitLeavesOthersOut", 2, split_leaves_others_out));
  registry.add(split_test("ASplitCommunicatorCanBeSplit", 2, split_of_a_split));
  registry.add(split_test("ASplitCommunicatorOutlivesItsParent", 2, children_outlive_parents));
  registry.add(split_test("WrongListsOfRanksAreRefused", 2, wrong_lists_are_refused));
  registry.add(split_test("AReservedFieldOfTheConfigOfASplitIsRefused", 1, reserved_field_of_a_split_is_refused));
}

}  // namespace concord::conformance
