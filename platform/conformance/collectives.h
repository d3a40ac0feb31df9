// One collective, by value: inputs that every rank can compute for every other, the call, and the comparison with the
// reference, with guard bytes around all buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "platform/conformance/numerics/numerics.h"
#include "platform/conformance/resources.h"

namespace concord::conformance {

// The operations that have one count for all ranks.
inline constexpr concord_comm_op kReducing[] = {CONCORD_COMM_ALL_REDUCE, CONCORD_COMM_REDUCE,
                                                CONCORD_COMM_REDUCE_SCATTER};
inline constexpr concord_comm_op kMoving[] = {CONCORD_COMM_BROADCAST, CONCORD_COMM_ALL_GATHER, CONCORD_COMM_ALL_TO_ALL};

bool reduces(concord_comm_op operation);
bool can_be_in_place(concord_comm_op operation);
const char* name_of_operation(concord_comm_op operation);  // "AllReduce"

struct Case {
  concord_comm_op operation;
  concord_dtype dtype;
  concord_reduce_op reduce = 0;  // for operations that reduce
  int64_t count = 0;
  int32_t root = 0;  // for reduce and broadcast
  bool in_place = false;
  uint32_t seed = 1;

  std::string describe() const;
};

// Element |index| .. of what |rank| sends, as bytes of |dtype|. Any rank can compute any other's.
//   floats that are reduced: magnitudes in [1/8, 2), both signs, every bit of the mantissa in use (PROD: [1/2, 2));
//   integers that are reduced: the whole range (AVG: so small that no sum can wrap); bool: 0 and 1;
//   data that is only moved: any bits (bool: 0 and 1).
void make_input(const Case& what, int world, int rank, int64_t first, int64_t count, uint8_t* out_elements);

// Fails if |got|, |count| elements, is not the reduction over |world| ranks of elements |first| .. of their inputs.
// Returns the largest share of the error bound.
double check_reduced(Context& t, const Case& what, int world, int64_t first, int64_t count, const uint8_t* got);

// A communicator and a stream to run cases on, with buffers that are reused.
class Bench {
 public:
  Bench(Context& t, concord_comm comm, concord_stream stream, int world, int rank)
      : t_(t), comm_(comm), stream_(stream), world_(world), rank_(rank) {}
  explicit Bench(Context& t) : Bench(t, t.world_comm(), t.stream(), t.world(), t.rank()) {}

  // Skips if the plugin declares it unsupported.
  void require_supported(const Case& what) const;
  // Runs and checks; the result stays for result().
  void run(const Case& what);
  // Only the call, on buffers that prepare() has filled; for tests that queue it themselves.
  void prepare(const Case& what);
  concord_status enqueue(const Case& what);
  void check(const Case& what);

  const Bytes& result() const { return result_; }
  Guarded& send() { return *send_; }  // what prepare() has filled, where the case is not in place
  Guarded& recv() { return *recv_; }

 private:
  int64_t send_count(const Case& what) const;
  int64_t recv_count(const Case& what) const;
  bool receives(const Case& what) const;
  void reserve(int64_t bytes);
  uint8_t* send_pointer(const Case& what) const;
  void check_received(const Case& what);

  Context& t_;
  concord_comm comm_;
  concord_stream stream_;
  int world_;
  int rank_;
  std::unique_ptr<Guarded> send_;
  std::unique_ptr<Guarded> recv_;
  int64_t capacity_ = 0;
  Bytes sent_;
  Bytes result_;
};

}  // namespace concord::conformance
