// The collectives by value: every operation, dtype and reduction against the reference, at many counts, in place and
// not.
#include "platform/conformance/collectives.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

Test on_all_worlds(std::string name, std::function<void(Context&)> body) {
  Test test{"comm", std::move(name), std::move(body)};
  test.most_world = kAnyWorld;
  return test;
}

std::vector<bool> places(concord_comm_op operation) {
  return can_be_in_place(operation) ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

// Small and odd counts, both ways; roots take turns.
void match_reference(Context& t, Case what) {
  Bench bench(t);
  bench.require_supported(what);
  std::vector<int64_t> counts = {0, 1, 3, 17, 1021};
  if (!t.quick()) counts.insert(counts.end(), {64, 255, 4099});
  for (const int64_t count : counts) {
    for (const bool in_place : places(what.operation)) {
      what.count = count;
      what.in_place = in_place;
      what.root = static_cast<int32_t>(what.seed % static_cast<uint32_t>(t.world()));
      bench.run(what);
      ++what.seed;
    }
  }
}

// Counts one below, at and one above those that fill 2^k bytes, for every k: where a plugin cuts a message into pieces,
// some of them are next to the cut. For operations that spread or collect parts, a part has that size, and all
// together.
std::vector<int64_t> counts_around_powers_of_two(const Case& what, int world, int largest_power) {
  const int64_t size = size_of(what.dtype);
  const bool has_parts = what.operation != CONCORD_COMM_ALL_REDUCE && what.operation != CONCORD_COMM_REDUCE &&
                         what.operation != CONCORD_COMM_BROADCAST;
  std::vector<int64_t> counts;
  for (int power = 8; power <= largest_power; ++power) {
    const int64_t total = (int64_t{1} << power) / size;
    const bool fits = !has_parts || power + 2 <= largest_power;  // all parts together are larger
    for (const int64_t around : {total - 1, total, total + 1}) {
      if (fits) counts.push_back(around);
      if (has_parts && world > 1) counts.push_back(std::max<int64_t>(around / world, 1));
    }
  }
  return counts;
}

void match_around_powers_of_two(Context& t, Case what, int largest_power) {
  Bench bench(t);
  bench.require_supported(what);
  for (const int64_t count : counts_around_powers_of_two(what, t.world(), largest_power)) {
    what.count = count;
    what.in_place = can_be_in_place(what.operation) && what.seed % 2 == 0;
    what.root = static_cast<int32_t>(what.seed % static_cast<uint32_t>(t.world()));
    ++what.seed;
    bench.run(what);
  }
}

void match_when_large(Context& t, Case what) {
  Bench bench(t);
  bench.require_supported(what);
  const int64_t pieces = what.operation == CONCORD_COMM_ALL_REDUCE ? 1 : t.world();
  what.count = ((int64_t{16} << 20) / size_of(what.dtype) + 5) / pieces;
  bench.run(what);
}

void every_root_works(Context& t, concord_comm_op operation) {
  Bench bench(t);
  for (int32_t root = 0; root < t.world(); ++root) {
    for (const bool in_place : {false, true}) {
      bench.run({operation, CONCORD_DTYPE_F32, reduces(operation) ? CONCORD_REDUCE_SUM : 0, 100, root, in_place,
                 static_cast<uint32_t>(root + 1)});
    }
  }
}

// Sums whose rounding depends on the order of the additions: the bits must agree between the ranks and between runs.
void bits_are_the_same(Context& t, concord_dtype dtype, concord_reduce_op reduce) {
  Bench bench(t);
  Case what{CONCORD_COMM_ALL_REDUCE, dtype, reduce};
  bench.require_supported(what);
  for (const int64_t count : {1000, 70001}) {
    what.count = count;
    Bytes first;
    for (int repeat = 0; repeat < 4; ++repeat) {
      what.in_place = repeat % 2 == 1;
      bench.run(what);
      if (repeat == 0) first = bench.result();
      CHECK(bench.result() == first, "%s: the bits of run %d differ from those of the first", what.describe().c_str(),
            repeat);
    }
    const std::vector<std::string> all = t.gather(std::to_string(digest(first)));
    for (size_t rank = 0; rank < all.size(); ++rank) {
      CHECK(all[rank] == all[0], "%s: the bits of rank %zu differ from those of rank 0", what.describe().c_str(), rank);
    }
  }
}

// Whatever the plugin declares unsupported has to be refused, not done wrongly.
void unsupported_is_refused(Context& t) {
  Bench bench(t);
  for (const concord_comm_op operation : kReducing) {
    for (const concord_dtype dtype : kAllDtypes) {
      for (const concord_reduce_op reduce : kAllReductions) {
        const Case what{operation, dtype, reduce, 4};
        int32_t supported = -1;
        CHECK_OK(t.comms().supports(t.comms().self, operation, dtype, reduce, &supported));
        if (supported != 0) continue;
        bench.prepare(what);
        const concord_status status = bench.enqueue(what);
        take_detail();
        CHECK(status == CONCORD_STATUS_UNIMPLEMENTED || status == CONCORD_STATUS_INVALID_ARGUMENT,
              "%s is declared unsupported, but the call returned %s", what.describe().c_str(),
              status_text(status).c_str());
      }
    }
  }
}

// What no training can do without.
void the_least_is_supported(Context& t) {
  const auto require = [&](concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce) {
    int32_t supported = -1;
    CHECK_OK(t.comms().supports(t.comms().self, operation, dtype, reduce, &supported));
    CHECK(supported == 1, "%s of %s is declared unsupported", name_of_operation(operation), name_of(dtype));
  };
  for (const concord_dtype dtype : {CONCORD_DTYPE_F32, CONCORD_DTYPE_BF16, CONCORD_DTYPE_I64}) {
    for (const concord_comm_op operation : kReducing) require(operation, dtype, CONCORD_REDUCE_SUM);
    for (const concord_comm_op operation : kMoving) require(operation, dtype, 0);
    require(CONCORD_COMM_ALL_TO_ALL_V, dtype, 0);
    require(CONCORD_COMM_P2P, dtype, 0);
  }
  require(CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_MAX);
  int32_t averaged = -1;
  CHECK_OK(
      t.comms().supports(t.comms().self, CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_BOOL, CONCORD_REDUCE_AVG, &averaged));
  CHECK(averaged == 0, "the average of bool is declared supported, but is undefined");
}

void add_reductions(Registry& registry, concord_comm_op operation) {
  for (const concord_dtype dtype : kAllDtypes) {
    for (const concord_reduce_op reduce : kAllReductions) {
      if (dtype == CONCORD_DTYPE_BOOL && reduce == CONCORD_REDUCE_AVG) continue;  // has no meaning
      const Case what{operation, dtype, reduce};
      registry.add(on_all_worlds(
          text("%s%sOf%sMatchesTheReference", name_of_operation(operation), name_of_reduction(reduce), name_of(dtype)),
          [what](Context& t) { match_reference(t, what); }));
    }
  }
}

void add_moves(Registry& registry, concord_comm_op operation) {
  for (const concord_dtype dtype : kAllDtypes) {
    const Case what{operation, dtype};
    registry.add(on_all_worlds(text("%sOf%sMovesEveryBit", name_of_operation(operation), name_of(dtype)),
                               [what](Context& t) { match_reference(t, what); }));
  }
}

void add_sizes(Registry& registry, concord_comm_op operation) {
  struct Size {
    concord_dtype dtype;
    int largest_power;
  };
  const concord_reduce_op reduce = reduces(operation) ? CONCORD_REDUCE_SUM : 0;
  for (const Size size : {Size{CONCORD_DTYPE_F32, 21}, Size{CONCORD_DTYPE_BF16, 19}, Size{CONCORD_DTYPE_I8, 16}}) {
    const Case what{operation, size.dtype, reduce};
    registry.add(on_all_worlds(
        text("%sOf%sIsRightAroundEveryPowerOfTwo", name_of_operation(operation), name_of(size.dtype)),
        [what, size](Context& t) { match_around_powers_of_two(t, what, t.quick() ? 15 : size.largest_power); }));
  }
  Test large =
      on_all_worlds(text("%sOfF32IsRightWhenLarge", name_of_operation(operation)),
                    [operation, reduce](Context& t) { match_when_large(t, {operation, CONCORD_DTYPE_F32, reduce}); });
  large.cost = Cost::kFull;
  registry.add(large);
}

void add_determinism(Registry& registry) {
  for (const concord_dtype dtype : kFloatDtypes) {
    for (const concord_reduce_op reduce : {CONCORD_REDUCE_SUM, CONCORD_REDUCE_PROD, CONCORD_REDUCE_AVG}) {
      Test test =
          on_all_worlds(text("%sOf%sHasTheSameBitsOnEveryRankAndInEveryRun", name_of_reduction(reduce), name_of(dtype)),
                        [dtype, reduce](Context& t) { bits_are_the_same(t, dtype, reduce); });
      test.needs = {CONCORD_CAP_COMM_DETERMINISTIC};
      test.least_world = 2;
      registry.add(test);
    }
  }
}

}  // namespace

void add_collective_tests(Registry& registry) {
  registry.add({"comm", "TheLeastThatTrainingNeedsIsSupported", the_least_is_supported});
  registry.add(on_all_worlds("WhatIsDeclaredUnsupportedIsRefused", unsupported_is_refused));
  for (const concord_comm_op operation : kReducing) add_reductions(registry, operation);
  for (const concord_comm_op operation : kMoving) add_moves(registry, operation);
  for (const concord_comm_op operation : kReducing) add_sizes(registry, operation);
  for (const concord_comm_op operation : kMoving) add_sizes(registry, operation);
  for (const concord_comm_op operation : {CONCORD_COMM_REDUCE, CONCORD_COMM_BROADCAST}) {
    registry.add(on_all_worlds(text("%sWorksWithEveryRoot", name_of_operation(operation)),
                               [operation](Context& t) { every_root_works(t, operation); }));
  }
  add_determinism(registry);
}

}  // namespace concord::conformance
