#include "platform/conformance/collectives.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace concord::conformance {
namespace {

constexpr int64_t kBlock = 4096;  // elements that are checked at a time

uint32_t mix(uint32_t value) {
  value ^= value >> 16;
  value *= 0x7feb352du;
  value ^= value >> 15;
  value *= 0x846ca68bu;
  return value ^ (value >> 16);
}

uint32_t random_word(uint32_t seed, int rank, int64_t index) {
  const auto low = static_cast<uint32_t>(index);
  const auto high = static_cast<uint32_t>(index >> 32);
  return mix(low * 2u + 0x9e3779b9u * (static_cast<uint32_t>(rank) + 1u) + seed * 0x85ebca6bu + high);
}

uint64_t random_pair(uint32_t seed, int rank, int64_t index) {
  return (static_cast<uint64_t>(random_word(seed, rank, index)) << 32) | random_word(seed + 0x51ed27u, rank, index);
}

// A float whose exponent is one of |exponents| (a power of two) up to 0, sign and mantissa random.
template <class Bits, int kMantissa, int kBias>
Bits float_from(uint64_t random, uint64_t exponents) {
  const auto sign = static_cast<Bits>(random >> 63) << (sizeof(Bits) * 8 - 1);
  const auto exponent =
      static_cast<Bits>(static_cast<Bits>(kBias - static_cast<int>((random >> 60) & (exponents - 1))) << kMantissa);
  const auto mantissa = static_cast<Bits>(random & ((uint64_t{1} << kMantissa) - 1));
  return static_cast<Bits>(sign | exponent | mantissa);
}

template <class Element, class Make>
void fill_elements(int64_t first, int64_t count, uint8_t* out, Make make) {
  for (int64_t i = 0; i < count; ++i) {
    const Element element = make(first + i);
    std::memcpy(out + i * static_cast<int64_t>(sizeof element), &element, sizeof element);
  }
}

void make_float_input(const Case& what, int rank, int64_t first, int64_t count, uint8_t* out) {
  const uint64_t exponents = what.reduce == CONCORD_REDUCE_PROD ? 2 : 4;
  const auto pair = [&](int64_t i) { return random_pair(what.seed, rank, i); };
  switch (what.dtype) {
    case CONCORD_DTYPE_F32:
      return fill_elements<uint32_t>(first, count, out,
                                     [&](int64_t i) { return float_from<uint32_t, 23, 127>(pair(i), exponents); });
    case CONCORD_DTYPE_F64:
      return fill_elements<uint64_t>(first, count, out,
                                     [&](int64_t i) { return float_from<uint64_t, 52, 1023>(pair(i), exponents); });
    case CONCORD_DTYPE_BF16:
      return fill_elements<uint16_t>(first, count, out,
                                     [&](int64_t i) { return float_from<uint16_t, 7, 127>(pair(i), exponents); });
    default:
      return fill_elements<uint16_t>(first, count, out,
                                     [&](int64_t i) { return float_from<uint16_t, 10, 15>(pair(i), exponents); });
  }
}

void make_integer_input(const Case& what, int world, int rank, int64_t first, int64_t count, uint8_t* out) {
  const bool small = what.reduce == CONCORD_REDUCE_AVG;  // so that the sum cannot wrap
  const int64_t lowest = lowest_integer(what.dtype) / (small ? world : 1);
  const int64_t highest = highest_integer(what.dtype) / (small ? world : 1);
  const uint64_t range = static_cast<uint64_t>(highest) - static_cast<uint64_t>(lowest) + 1;  // 0: all of 64 bits
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t random = random_pair(what.seed, rank, first + i);
    const auto value = static_cast<int64_t>(static_cast<uint64_t>(lowest) + (range == 0 ? random : random % range));
    encode_integers(what.dtype, &value, 1, out + i * size_of(what.dtype));
  }
}

void make_moved_input(const Case& what, int rank, int64_t first, int64_t count, uint8_t* out) {
  const int64_t size = size_of(what.dtype);
  const uint8_t mask = what.dtype == CONCORD_DTYPE_BOOL ? 1 : 0xff;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t random = random_pair(what.seed, rank, first + i);
    std::memcpy(out + i * size, &random, static_cast<size_t>(size));
    if (size == 1) out[i] &= mask;
  }
}

std::string element_text(const Case& what, int64_t index, int64_t count) {
  return text("%s: element %lld of %lld", what.describe().c_str(), static_cast<long long>(index),
              static_cast<long long>(count));
}

double check_floats(Context& t, const Case& what, int world, int64_t first, int64_t count, const uint8_t* got) {
  const int64_t size = size_of(what.dtype);
  const auto ranks = static_cast<size_t>(world);
  std::vector<double> values(ranks * kBlock);
  std::vector<double> results(kBlock);
  std::vector<double> elements(ranks);
  Bytes encoded(static_cast<size_t>(kBlock * size));
  double largest = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    for (size_t r = 0; r < ranks; ++r) {
      make_input(what, world, static_cast<int>(r), first + begin, block, encoded.data());
      decode_floats(what.dtype, encoded.data(), block, values.data() + r * kBlock);
    }
    decode_floats(what.dtype, got + begin * size, block, results.data());
    for (int64_t i = 0; i < block; ++i) {
      for (size_t r = 0; r < ranks; ++r) elements[r] = values[r * kBlock + static_cast<size_t>(i)];
      const Bounded wanted = reduce_floats(what.dtype, what.reduce, elements.data(), world);
      const double share = share_of_bound(what.dtype, wanted, results[static_cast<size_t>(i)]);
      largest = std::max(largest, share);
      if (share > 1) {
        t.fail(element_text(what, begin + i, count) +
               text(" is %.17g, the reference is %.17g +- %.3g (%.1f times the bound)", results[static_cast<size_t>(i)],
                    wanted.exact, wanted.bound, share));
      }
    }
  }
  return largest;
}

void check_integers(Context& t, const Case& what, int world, int64_t first, int64_t count, const uint8_t* got) {
  const int64_t size = size_of(what.dtype);
  std::vector<int64_t> elements(static_cast<size_t>(world));
  uint8_t encoded[8];
  for (int64_t i = 0; i < count; ++i) {
    for (int r = 0; r < world; ++r) {
      make_input(what, world, r, first + i, 1, encoded);
      decode_integers(what.dtype, encoded, 1, &elements[static_cast<size_t>(r)]);
    }
    const int64_t wanted = reduce_integers(what.dtype, what.reduce, elements.data(), world);
    int64_t result = 0;
    decode_integers(what.dtype, got + i * size, 1, &result);
    if (result != wanted) {
      t.fail(element_text(what, i, count) +
             text(" is %lld, the reference is %lld", static_cast<long long>(result), static_cast<long long>(wanted)));
    }
  }
}

}  // namespace

bool reduces(concord_comm_op operation) {
  return std::find(std::begin(kReducing), std::end(kReducing), operation) != std::end(kReducing);
}

bool can_be_in_place(concord_comm_op operation) { return operation != CONCORD_COMM_ALL_TO_ALL; }

const char* name_of_operation(concord_comm_op operation) {
  static const char* const names[] = {"",         "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
                                      "AllToAll", "AllToAllV", "P2p",    "Barrier"};
  return names[operation];
}

std::string Case::describe() const {
  std::string result =
      text("%s of %s x %lld", name_of_operation(operation), name_of(dtype), static_cast<long long>(count));
  if (reduces(operation)) result += std::string(" ") + name_of_reduction(reduce);
  if (operation == CONCORD_COMM_REDUCE || operation == CONCORD_COMM_BROADCAST) result += text(" root %d", root);
  return result + (in_place ? " in place" : "");
}

void make_input(const Case& what, int world, int rank, int64_t first, int64_t count, uint8_t* out_elements) {
  if (!reduces(what.operation)) return make_moved_input(what, rank, first, count, out_elements);
  if (is_float(what.dtype)) return make_float_input(what, rank, first, count, out_elements);
  make_integer_input(what, world, rank, first, count, out_elements);
}

double check_reduced(Context& t, const Case& what, int world, int64_t first, int64_t count, const uint8_t* got) {
  if (is_float(what.dtype)) return check_floats(t, what, world, first, count, got);
  check_integers(t, what, world, first, count, got);
  return 0;
}

void Bench::require_supported(const Case& what) const {
  int32_t supported = -1;
  Context& t = t_;
  CHECK_OK(t.comms().supports(t.comms().self, what.operation, what.dtype, what.reduce, &supported));
  CHECK(supported == 0 || supported == 1, "comm.supports returned %d", supported);
  if (supported == 1) return;
  t.skip_unsupported(text("the plugin declares %s of %s%s%s unsupported", name_of_operation(what.operation),
                          name_of(what.dtype), what.reduce != 0 ? " " : "",
                          what.reduce != 0 ? name_of_reduction(what.reduce) : ""));
}

int64_t Bench::send_count(const Case& what) const {
  const bool scattered = what.operation == CONCORD_COMM_REDUCE_SCATTER || what.operation == CONCORD_COMM_ALL_TO_ALL;
  return scattered ? what.count * world_ : what.count;
}

int64_t Bench::recv_count(const Case& what) const {
  const bool gathered = what.operation == CONCORD_COMM_ALL_GATHER || what.operation == CONCORD_COMM_ALL_TO_ALL;
  return gathered ? what.count * world_ : what.count;
}

bool Bench::receives(const Case& what) const { return what.operation != CONCORD_COMM_REDUCE || rank_ == what.root; }

void Bench::reserve(int64_t bytes) {
  if (recv_ != nullptr && bytes <= capacity_) return;
  capacity_ = bytes;
  recv_ = std::make_unique<Guarded>(t_, capacity_);
  send_ = std::make_unique<Guarded>(t_, capacity_);
}

uint8_t* Bench::send_pointer(const Case& what) const {
  if (!what.in_place) return send_->get();
  const int64_t piece = what.operation == CONCORD_COMM_ALL_GATHER ? rank_ * what.count * size_of(what.dtype) : 0;
  return recv_->get() + piece;
}

// Buffers lie one element off the allocation's alignment: the contract asks for no more than the element's own.
void Bench::prepare(const Case& what) {
  const int64_t size = size_of(what.dtype);
  const int64_t send_bytes = send_count(what) * size;
  const int64_t recv_bytes = recv_count(what) * size;
  const int64_t shift = what.count % 2 == 1 ? size : 0;
  const int64_t larger = std::max(send_bytes, recv_bytes);
  reserve(larger + shift);
  recv_->reset(what.in_place ? larger : recv_bytes, shift);
  send_->reset(send_bytes, shift);
  sent_.assign(static_cast<size_t>(send_bytes), 0);
  make_input(what, world_, rank_, 0, send_count(what), sent_.data());
  if (!what.in_place) return send_->write(sent_);
  Bytes image(static_cast<size_t>(larger), Guarded::kPoison);
  std::copy(sent_.begin(), sent_.end(), image.begin() + (send_pointer(what) - recv_->get()));
  recv_->write(image);
}

concord_status Bench::enqueue(const Case& what) {
  const concord_comm_table& c = t_.comms();
  void* send = send_pointer(what);
  uint8_t* recv = recv_->get();
  const int64_t n = what.count;
  switch (what.operation) {
    case CONCORD_COMM_ALL_REDUCE: return c.all_reduce(c.self, comm_, send, recv, n, what.dtype, what.reduce, stream_);
    case CONCORD_COMM_REDUCE:
      if (rank_ != what.root && !what.in_place && n % 3 == 0) recv = nullptr;  // may be null there
      return c.reduce(c.self, comm_, send, recv, n, what.dtype, what.reduce, what.root, stream_);
    case CONCORD_COMM_BROADCAST:
      if (rank_ != what.root && !what.in_place && n % 3 == 0) send = nullptr;  // may be null there
      return c.broadcast(c.self, comm_, send, recv, n, what.dtype, what.root, stream_);
    case CONCORD_COMM_ALL_GATHER: return c.all_gather(c.self, comm_, send, recv, n, what.dtype, stream_);
    case CONCORD_COMM_REDUCE_SCATTER:
      if (what.in_place) recv += rank_ * n * size_of(what.dtype);
      return c.reduce_scatter(c.self, comm_, send, recv, n, what.dtype, what.reduce, stream_);
    default: return c.all_to_all(c.self, comm_, send, recv, n, what.dtype, stream_);
  }
}

void Bench::check_received(const Case& what) {
  const int64_t size = size_of(what.dtype);
  const int64_t n = what.count;
  if (reduces(what.operation)) {
    const int64_t first = what.operation == CONCORD_COMM_REDUCE_SCATTER ? rank_ * n : 0;
    t_.note_share(check_reduced(t_, what, world_, first, n, result_.data()));
    return;
  }
  Bytes wanted(static_cast<size_t>(n * size));
  const int pieces = what.operation == CONCORD_COMM_BROADCAST ? 1 : world_;
  for (int piece = 0; piece < pieces; ++piece) {
    const int from = what.operation == CONCORD_COMM_BROADCAST ? what.root : piece;
    const int64_t first = what.operation == CONCORD_COMM_ALL_TO_ALL ? rank_ * n : 0;
    make_input(what, world_, from, first, n, wanted.data());
    const uint8_t* got = result_.data() + piece * n * size;
    for (int64_t i = 0; i < n * size; ++i) {
      if (got[i] == wanted[static_cast<size_t>(i)]) continue;
      t_.fail(element_text(what, i / size, n) +
              text(" from rank %d has byte %d instead of %d", from, got[i], wanted[static_cast<size_t>(i)]));
    }
  }
}

void Bench::check(const Case& what) {
  const int64_t size = size_of(what.dtype);
  const Bytes received = recv_->read("receive");
  if (!what.in_place && send_->read("send") != sent_) t_.fail(what.describe() + ": the send buffer was changed");
  if (!receives(what)) {
    const bool untouched = what.in_place ? received == sent_ : all_are(received, Guarded::kPoison);
    if (!untouched) t_.fail(what.describe() + ": the receive buffer of a rank other than the root was changed");
    return;
  }
  int64_t begin = 0;
  if (what.in_place && what.operation == CONCORD_COMM_REDUCE_SCATTER) begin = rank_ * what.count * size;
  result_.assign(received.begin() + begin, received.begin() + begin + recv_count(what) * size);
  check_received(what);
}

void Bench::run(const Case& what) {
  Context& t = t_;
  prepare(what);
  const std::string call = what.describe();
  t.step(call.c_str());
  t.require_ok(enqueue(what), call.c_str());
  CHECK_OK(t.streams().synchronize(t.streams().self, stream_));
  check(what);
}

}  // namespace concord::conformance
