// The positions of each parameter and its gradient in flat buffers, and which parts of them are reduced together: a
// value that can be printed (`concord plan --buckets`), computed by a pure function. Threads: any.
//
// Parameters of one type (dense and expert ones separately) share a buffer, in the reverse of the order in which the
// forward pass uses them, so that gradients fill it from its beginning. A bucket is closed once it has
// |bucket_elements|: Megatron's rule, max(40e6, 1e6 * dp). For the distributed optimizer (ZeRO-1, Rajbhandari et al.
// 2020) a bucket's end is padded to lcm(dp, 128), so that it can be split into dp equal shards, regardless of parameter
// boundaries. Parameters begin at multiples of 64 elements: kernels and collectives are faster on aligned operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "platform/cpp/types.hpp"

namespace concord {

struct PlannedParameter {
  std::string name;
  int64_t elements = 0;  // on this rank
  DType dtype = DType::kF32;
  bool expert = false;
  // Alone in its bucket. For an embedding that two stages share: both then split it into the same shards.
  bool alone = false;
};

struct BucketOptions {
  int64_t dp = 1;               // ranks that hold the same dense parameters: dp * cp
  int64_t edp = 1;              // the same for expert parameters
  int64_t bucket_elements = 0;  // 0: Megatron's rule
  bool one_bucket = false;      // a bucket a buffer, whatever its size; |alone| still counts
  bool distributed_optimizer = false;
  bool fp32_grads = true;  // false: gradients in the parameter's type
};

struct BucketPlan {
  struct Slot {
    size_t parameter;  // index in the list that was given
    int64_t begin;     // elements, from the buffer's beginning
    int64_t end;
    bool operator==(const Slot&) const = default;
  };
  struct Bucket {
    int64_t begin;
    int64_t end;  // with padding; the next bucket begins here
    std::vector<Slot> slots;
    bool operator==(const Bucket&) const = default;
  };
  struct Buffer {
    DType dtype;
    DType grad_dtype;
    bool expert;
    int64_t shards;    // ranks that a bucket is split over; 1 without the distributed optimizer
    int64_t elements;  // with padding
    std::vector<Bucket> buckets;
    bool operator==(const Buffer&) const = default;
  };
  struct Place {
    size_t buffer;
    size_t bucket;
    bool operator==(const Place&) const = default;
  };

  std::vector<Buffer> buffers;
  std::vector<Place> order;  // in which buckets are reduced: as the last gradient of each arrives
  bool operator==(const BucketPlan&) const = default;
};

// Throws ConfigError for sizes below 1, a bucket size below 0 and types that are not trained (f32, bf16 and f16 are).
BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters, const BucketOptions& options);

// Bytes on one rank, of parameters, gradients and AdamW's state, padding included.
struct BucketMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer =
      0;  // two moments, and fp32 weights where the parameter has 16 bits: 8 or 12 bytes, over the shards
  int64_t total() const { return parameters + gradients + optimizer; }
};
BucketMemory memory_of(const BucketPlan& plan);

// A table for people, and one JSON document.
std::string to_text(const BucketPlan& plan, const std::vector<PlannedParameter>& parameters);
std::string to_json(const BucketPlan& plan, const std::vector<PlannedParameter>& parameters);

}  // namespace concord
