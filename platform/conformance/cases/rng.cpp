// The rng table: the same bits on every vendor, whatever the split of a buffer.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "platform/conformance/numerics/numerics.h"
#include "platform/conformance/numerics/philox.h"
#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"
#include "platform/conformance/resources.h"

namespace concord::conformance {
namespace {

struct State {
  uint64_t key, subsequence, offset;
};

constexpr State kStates[] = {
    {0, 0, 0},
    {0xa4093822299f31d0, 0x0370734413198a2e, 0x05a308d3243f6a88},  // digits of pi
    {1, 0, 3},
    {0xffffffffffffffff, 0xffffffffffffffff, 0x7ffffffffffffff1},
    {42, 7, (uint64_t{1} << 34) - 5},  // the lower word of the block's number overflows on the way
};

struct Form {
  concord_rng_kind kind;
  concord_dtype dtype;
};

constexpr Form kForms[] = {
    {CONCORD_RNG_BITS, CONCORD_DTYPE_I32},     {CONCORD_RNG_BITS, CONCORD_DTYPE_I64},
    {CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32},  {CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F64},
    {CONCORD_RNG_UNIFORM, CONCORD_DTYPE_BF16}, {CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F16},
    {CONCORD_RNG_NORMAL, CONCORD_DTYPE_F32},   {CONCORD_RNG_NORMAL, CONCORD_DTYPE_F64},
    {CONCORD_RNG_NORMAL, CONCORD_DTYPE_BF16},  {CONCORD_RNG_NORMAL, CONCORD_DTYPE_F16},
    {CONCORD_RNG_INTEGER, CONCORD_DTYPE_I32},  {CONCORD_RNG_INTEGER, CONCORD_DTYPE_I64},
};

concord_rng_request request_of(const Form& form, const State& state, int64_t count) {
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = form.kind;
  request.dtype = form.dtype;
  request.count = count;
  request.key = state.key;
  request.subsequence = state.subsequence;
  request.offset = state.offset;
  request.low = form.kind == CONCORD_RNG_NORMAL ? 0.5 : -1.25;
  request.high = form.kind == CONCORD_RNG_NORMAL ? 0.75 : 3.5;
  request.integer_low = -1000;
  request.integer_high = 12345;
  return request;
}

Bytes draw(Context& t, concord_rng_request request) {
  const int64_t size = size_of(request.dtype);
  Guarded memory(t, request.count * size, size);
  request.destination = memory.get();
  CHECK_OK(t.rng().fill(t.rng().self, &request, t.stream()));
  synchronize(t, t.stream());
  return memory.read("random");
}

template <class Element>
Element element_at(const Bytes& bytes, int64_t index) {
  Element element;
  std::memcpy(&element, bytes.data() + index * static_cast<int64_t>(sizeof element), sizeof element);
  return element;
}

void published_vector(Context& t) {
  const Bytes got = draw(t, request_of({CONCORD_RNG_BITS, CONCORD_DTYPE_I32}, {0, 0, 0}, 4));
  constexpr uint32_t kPublished[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};  // Random123, kat_vectors
  for (int64_t i = 0; i < 4; ++i) {
    CHECK(element_at<uint32_t>(got, i) == kPublished[i], "word %d is %08x, published is %08x", static_cast<int>(i),
          element_at<uint32_t>(got, i), kPublished[i]);
  }
}

void bits_match(Context& t) {
  for (const State& state : kStates) {
    constexpr int64_t kCount = 1003;
    const Bytes words = draw(t, request_of({CONCORD_RNG_BITS, CONCORD_DTYPE_I32}, state, kCount));
    const Bytes pairs = draw(t, request_of({CONCORD_RNG_BITS, CONCORD_DTYPE_I64}, state, kCount));
    for (int64_t i = 0; i < kCount; ++i) {
      const uint64_t position = state.offset + static_cast<uint64_t>(i);
      CHECK(element_at<uint32_t>(words, i) == philox_word(state.key, state.subsequence, position),
            "32 bits at position %llu of key %llx, subsequence %llx differ from Philox",
            static_cast<unsigned long long>(position), static_cast<unsigned long long>(state.key),
            static_cast<unsigned long long>(state.subsequence));
      CHECK(element_at<uint64_t>(pairs, i) == philox_word_pair(state.key, state.subsequence, position),
            "64 bits at position %llu of key %llx, subsequence %llx differ from Philox",
            static_cast<unsigned long long>(position), static_cast<unsigned long long>(state.key),
            static_cast<unsigned long long>(state.subsequence));
    }
  }
}

// Two roundings, never fused: volatile keeps the compiler from it.
float uniform_float(uint32_t word, float low, float high) {
  volatile float scaled = static_cast<float>(word >> 8) * 0x1p-24f;
  volatile float product = scaled * (high - low);
  volatile float value = low + product;
  return value < high ? value : std::nextafter(high, low);
}

double uniform_double(uint64_t pair, double low, double high) {
  volatile double scaled = static_cast<double>(pair >> 11) * 0x1p-53;
  volatile double product = scaled * (high - low);
  volatile double value = low + product;
  return value < high ? value : std::nextafter(high, low);
}

void uniform_matches(Context& t) {
  constexpr int64_t kCount = 2003;
  for (const State& state : kStates) {
    const concord_rng_request single = request_of({CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32}, state, kCount);
    const Bytes floats = draw(t, single);
    const Bytes doubles = draw(t, request_of({CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F64}, state, kCount));
    for (int64_t i = 0; i < kCount; ++i) {
      const uint64_t position = state.offset + static_cast<uint64_t>(i);
      const float wanted = uniform_float(philox_word(state.key, state.subsequence, position),
                                         static_cast<float>(single.low), static_cast<float>(single.high));
      const double wanted_double =
          uniform_double(philox_word_pair(state.key, state.subsequence, position), single.low, single.high);
      CHECK(element_at<float>(floats, i) == wanted, "uniform f32 %d is %.9g instead of %.9g", static_cast<int>(i),
            static_cast<double>(element_at<float>(floats, i)), static_cast<double>(wanted));
      CHECK(element_at<double>(doubles, i) == wanted_double, "uniform f64 %d is %.17g instead of %.17g",
            static_cast<int>(i), element_at<double>(doubles, i), wanted_double);
    }
  }
}

// A range so narrow that rounding would carry values up to its end, which is not in it.
void uniform_stays_below_high(Context& t) {
  concord_rng_request request = request_of({CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32}, {5, 0, 0}, 20000);
  request.low = 1;
  request.high = 1 + 3 * 0x1p-23;
  const Bytes got = draw(t, request);
  for (int64_t i = 0; i < request.count; ++i) {
    const double value = static_cast<double>(element_at<float>(got, i));
    CHECK(value >= request.low && value < request.high, "a uniform value of [%.9g, %.9g) is %.9g", request.low,
          request.high, value);
  }
}

void integers_match(Context& t) {
  struct Range {
    int64_t low, high;
  };
  constexpr int64_t kCount = 1001;
  for (const Range range : {Range{0, 10}, Range{-5, 5}, Range{INT32_MIN, INT32_MAX}, Range{INT64_MIN, INT64_MAX}}) {
    for (const concord_dtype dtype : {CONCORD_DTYPE_I32, CONCORD_DTYPE_I64}) {
      if (dtype == CONCORD_DTYPE_I32 && range.low < INT32_MIN) continue;
      concord_rng_request request = request_of({CONCORD_RNG_INTEGER, dtype}, kStates[1], kCount);
      request.integer_low = range.low;
      request.integer_high = range.high;
      const Bytes got = draw(t, request);
      const uint64_t width = static_cast<uint64_t>(range.high) - static_cast<uint64_t>(range.low);
      for (int64_t i = 0; i < kCount; ++i) {
        const uint64_t pair =
            philox_word_pair(request.key, request.subsequence, request.offset + static_cast<uint64_t>(i));
        __extension__ using Wide = unsigned __int128;
        const auto step = static_cast<uint64_t>((static_cast<Wide>(pair) * width) >> 64);
        const auto wanted = static_cast<int64_t>(static_cast<uint64_t>(range.low) + step);
        int64_t value = 0;
        decode_integers(dtype, got.data() + i * size_of(dtype), 1, &value);
        CHECK(value == wanted, "integer %d of [%lld, %lld) is %lld instead of %lld", static_cast<int>(i),
              static_cast<long long>(range.low), static_cast<long long>(range.high), static_cast<long long>(value),
              static_cast<long long>(wanted));
      }
    }
  }
}

// The |z| whose upper tail has probability |tail|, by bisection on erfc.
double upper_quantile(double tail) {
  double low = 0;
  double high = 40;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > tail ? low : high) = middle;
  }
  return (low + high) / 2;
}

// rng.h gives the sign by the top bit, and the tail by the 62 bits below it (31 of each word's upper bits).
double normal_reference(uint64_t pair) {
  const uint64_t upper = (pair >> 32) & 0x7fffffff;
  const uint64_t lower = static_cast<uint32_t>(pair) >> 1;
  const double tail = std::ldexp(static_cast<double>(upper), -32) + std::ldexp(static_cast<double>(lower) + 0.5, -63);
  const double z = upper_quantile(tail);
  return (pair >> 63) != 0 ? -z : z;
}

void normal_matches(Context& t) {
  constexpr int64_t kCount = 3001;
  concord_rng_request request = request_of({CONCORD_RNG_NORMAL, CONCORD_DTYPE_F32}, kStates[1], kCount);
  request.low = 0;
  request.high = 1;
  const Bytes got = draw(t, request);
  for (int64_t i = 0; i < kCount; ++i) {
    const uint64_t pair = philox_word_pair(request.key, request.subsequence, request.offset + static_cast<uint64_t>(i));
    const double wanted = normal_reference(pair);
    const double bound = 2e-6 * std::fabs(wanted) + 1e-7;  // the definition is good to 5e-7 relative in f32 arithmetic
    const double error = std::fabs(static_cast<double>(element_at<float>(got, i)) - wanted);
    t.note_share(error / bound);
    CHECK(error <= bound, "normal value %d is %.9g, the exact quantile is %.9g", static_cast<int>(i),
          static_cast<double>(element_at<float>(got, i)), wanted);
  }
}

// Our own definition, frozen: what any vendor must return for 100003 values. The underlying words have published
// vectors.
void frozen_values(Context& t) {
  struct Frozen {
    Form form;
    uint64_t digest;
  };
  static constexpr Frozen kFrozen[] = {
#include "platform/conformance/cases/rng_frozen.inc"
  };
  std::string wrong;
  for (const Frozen& frozen : kFrozen) {
    const uint64_t got = digest(draw(t, request_of(frozen.form, kStates[1], 100003)));
    if (got != frozen.digest) {
      wrong +=
          text(" {{%d, %d}, 0x%016llx},", frozen.form.kind, frozen.form.dtype, static_cast<unsigned long long>(got));
    }
  }
  CHECK(wrong.empty(), "these {{kind, dtype}, digest} differ from the frozen ones:%s", wrong.c_str());
}

void narrow_types_are_rounded(Context& t) {
  for (const concord_rng_kind kind : {CONCORD_RNG_UNIFORM, CONCORD_RNG_NORMAL}) {
    constexpr int64_t kCount = 4001;
    const Bytes floats = draw(t, request_of({kind, CONCORD_DTYPE_F32}, kStates[2], kCount));
    std::vector<double> values(kCount);
    decode_floats(CONCORD_DTYPE_F32, floats.data(), kCount, values.data());
    for (const concord_dtype dtype : {CONCORD_DTYPE_BF16, CONCORD_DTYPE_F16, CONCORD_DTYPE_F64}) {
      if (kind == CONCORD_RNG_UNIFORM && dtype == CONCORD_DTYPE_F64) continue;  // has 53 bits of its own
      Bytes wanted(static_cast<size_t>(kCount * size_of(dtype)));
      encode_floats(dtype, values.data(), kCount, wanted.data());
      CHECK(draw(t, request_of({kind, dtype}, kStates[2], kCount)) == wanted,
            "kind %d of %s is not the f32 value, rounded to nearest", kind, name_of(dtype));
    }
  }
}

void splits_do_not_matter(Context& t, const Form& form) {
  constexpr int64_t kCount = 23;
  const int64_t size = size_of(form.dtype);
  for (const State& state : {kStates[2], kStates[4]}) {
    const Bytes whole = draw(t, request_of(form, state, kCount));
    for (int64_t cut = 0; cut <= kCount; ++cut) {
      Bytes joined = draw(t, request_of(form, state, cut));
      State later = state;
      later.offset += static_cast<uint64_t>(cut);
      const Bytes rest = draw(t, request_of(form, later, kCount - cut));
      joined.insert(joined.end(), rest.begin(), rest.end());
      CHECK(joined == whole, "kind %d of %s differs when %d values are drawn as %d and the rest", form.kind,
            name_of(form.dtype), static_cast<int>(kCount), static_cast<int>(cut));
    }
    (void)size;
  }
}

// A block of rows inside a larger sequence, as a shard of a matrix is: the same as one fill for each row.
void runs_are_rows(Context& t) {
  if (t.plugin().root->header.minor < 1) t.skip_unsupported("the plugin has ABI 1.0, which has no runs");
  constexpr int64_t kRows = 29;
  for (const Form& form : kForms) {
    for (const int64_t width : {int64_t{1}, int64_t{7}, int64_t{64}, int64_t{501}}) {
      concord_rng_request request = request_of(form, kStates[4], kRows * width - (width > 1 ? 1 : 0));
      request.run_length = width;
      request.run_stride = 3 * width + 2;
      const Bytes block = draw(t, request);
      Bytes rows;
      for (int64_t row = 0; row < kRows; ++row) {
        State state = kStates[4];
        state.offset += static_cast<uint64_t>(row * request.run_stride);
        const Bytes one = draw(t, request_of(form, state, std::min(width, request.count - row * width)));
        rows.insert(rows.end(), one.begin(), one.end());
      }
      CHECK(block == rows, "runs of %d values of kind %d of %s differ from the rows drawn one by one",
            static_cast<int>(width), form.kind, name_of(form.dtype));
    }
  }
}

void large_fills_are_the_sum_of_their_parts(Context& t) {
  const int64_t count = t.quick() ? 300001 : 3000001;
  for (const Form& form : {kForms[0], kForms[6], kForms[8]}) {
    const int64_t size = size_of(form.dtype);
    const Bytes whole = draw(t, request_of(form, kStates[1], count));
    for (const int64_t first : {int64_t{0}, int64_t{65533}, count / 2 + 1, count - 1000}) {
      State state = kStates[1];
      state.offset += static_cast<uint64_t>(first);
      const Bytes part = draw(t, request_of(form, state, 1000));
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + first * size),
            "values %lld to %lld of a large fill differ from a small one", static_cast<long long>(first),
            static_cast<long long>(first + 1000));
    }
  }
}

// Every bit of the state has to count: a state that differs in one bit gives other values.
void every_bit_counts(Context& t, uint64_t State::* field, const char* name) {
  const Form form = kForms[1];
  constexpr State kBase{3, 5, 8};
  const Bytes base = draw(t, request_of(form, kBase, 16));
  for (int bit = 0; bit < 64; ++bit) {
    State other = kBase;
    other.*field ^= uint64_t{1} << bit;
    CHECK(draw(t, request_of(form, other, 16)) != base, "bit %d of the %s makes no difference", bit, name);
  }
}

// A generator is three integers: with them a draw continues where it stopped.
void state_can_be_restored(Context& t) {
  for (const Form& form : kForms) {
    const Bytes first = draw(t, request_of(form, kStates[1], 500));
    draw(t, request_of(form, kStates[3], 333));
    CHECK(draw(t, request_of(form, kStates[1], 500)) == first, "kind %d of %s is not the same after other draws",
          form.kind, name_of(form.dtype));
  }
}

void fills_run_in_stream_order(Context& t) {
  Stream stream(t);
  Guarded memory(t, 4000);
  concord_rng_request request = request_of(kForms[0], kStates[1], 1000);
  request.destination = memory.get();
  CHECK_OK(t.rng().fill(t.rng().self, &request, stream.get()));
  synchronize(t, stream.get());
  const Bytes wanted = memory.read("random");
  {
    Gate gate(t, stream.get());
    fill(t, memory.get(), 0, 4000, stream.get());
    CHECK_OK(t.rng().fill(t.rng().self, &request, stream.get()));
    std::memset(static_cast<void*>(&request), 0x7f, sizeof request);  // it was read before the call returned
    gate.require_closed("rng.fill");
    if (gate.holds()) linger();
    gate.open();
    synchronize(t, stream.get());
  }
  CHECK(memory.read("random") == wanted, "rng.fill did not run in the order of its stream");
}

void threads_draw_at_once(Context& t) {
  const Bytes wanted = draw(t, request_of(kForms[6], kStates[1], 5000));
  (void)t.stream();
  run_threads(4, [&](int) {
    for (int i = 0; i < 20; ++i) {
      CHECK(draw(t, request_of(kForms[6], kStates[1], 5000)) == wanted, "one of four threads drew different values");
    }
  });
}

void none_is_fine(Context& t) {
  concord_rng_request request = request_of(kForms[2], kStates[0], 0);
  CHECK_OK(t.rng().fill(t.rng().self, &request, t.stream()));
  synchronize(t, t.stream());
}

}  // namespace

void add_rng_tests(Registry& registry) {
  registry.add({"rng", "BitsAreThePublishedVector", published_vector});
  registry.add({"rng", "BitsMatchPhiloxAtEveryPosition", bits_match});
  registry.add({"rng", "UniformMatchesItsDefinition", uniform_matches});
  registry.add({"rng", "UniformStaysBelowTheEndOfItsRange", uniform_stays_below_high});
  registry.add({"rng", "IntegersMatchTheirDefinition", integers_match});
  registry.add({"rng", "NormalMatchesTheExactQuantile", normal_matches});
  registry.add({"rng", "ValuesAreTheFrozenOnes", frozen_values});
  registry.add({"rng", "NarrowTypesAreTheF32ValueRounded", narrow_types_are_rounded});
  for (const Form& form : kForms) {
    static const char* const kinds[] = {"", "Bits", "Uniform", "Normal", "Integer"};
    registry.add({"rng", text("%sOf%sDoesNotDependOnTheSplit", kinds[form.kind], name_of(form.dtype)),
                  [form](Context& t) { splits_do_not_matter(t, form); }});
  }
  registry.add({"rng", "LargeFillsAreMadeOfTheSameValues", large_fills_are_the_sum_of_their_parts});
  registry.add({"rng", "RunsAreTheRowsOfABlock", runs_are_rows});
  registry.add({"rng", "EveryBitOfTheKeyCounts", [](Context& t) { every_bit_counts(t, &State::key, "key"); }});
  registry.add({"rng", "EveryBitOfTheSubsequenceCounts",
                [](Context& t) { every_bit_counts(t, &State::subsequence, "subsequence"); }});
  registry.add({"rng", "EveryBitOfTheOffsetCounts", [](Context& t) { every_bit_counts(t, &State::offset, "offset"); }});
  registry.add({"rng", "AStateCanBeSavedAndRestored", state_can_be_restored});
  registry.add({"rng", "FillsRunInTheOrderOfTheirStream", fills_run_in_stream_order});
  registry.add({"rng", "FourThreadsDrawAtOnce", threads_draw_at_once});
  registry.add({"rng", "NoValuesAreFine", none_is_fine});
  registry.add({"rng", "WrongArgumentsAreRefused", [](Context& t) { require_refused(t, rng_refusals(t)); }});
}

}  // namespace concord::conformance
