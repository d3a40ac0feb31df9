// The layout of parameters and gradients in flat buffers, and their grouping into buckets that are reduced together. A
// printable value (`concord plan --buckets`), computed by a pure function. Threads: any.
//
// Parameters of one type (dense and expert ones separately) share a buffer, in the reverse order of their use in the
// forward pass, so that gradients fill it from its start. In each bucket the vectors (norms, biases) follow the
// matrices, so that each kind is one array, which the optimizer updates with few launches. A bucket is closed once it
// has |bucket_elements|: Megatron's rule, max(40e6, 1e6 * dp). For the distributed optimizer (ZeRO-1, Rajbhandari et
// al. 2020) a bucket's end is padded to lcm(dp, 128), so that it can be split into dp equal shards, regardless of
// parameter boundaries. Parameters start at multiples of 64 elements: kernels and collectives are faster on aligned
// operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "platform/cpp/types.hpp"

namespace concord {

struct PlannedParameter {
  std::string name;
  int64_t elements = 0;  // on this rank
  DType dtype = DType::kF32;
  bool expert = false;
  // Alone in its bucket. For an embedding shared by two stages, so that both split it into the same shards.
  bool alone = false;
  bool is_vector = false;  // follows the matrices of its bucket
};

struct BucketOptions {
  int64_t dp = 1;               // ranks that hold the same dense parameters: dp * cp
  int64_t edp = 1;              // ranks that hold the same expert parameters
  int64_t bucket_elements = 0;  // 0: Megatron's rule
  bool one_bucket = false;      // one bucket per buffer, whatever its size; |alone| still applies
  bool distributed_optimizer = false;
  int64_t alignment = 0;   // unit of parameters and shards, a multiple of 64; 0: 64, and shards of lcm(dp, 128) / dp
  bool fp32_grads = true;  // false: gradients in the parameter's type
};

struct BucketPlan {
  struct Slot {
    size_t parameter;  // index in the given list
    int64_t begin;     // in elements, from the start of the buffer
    int64_t end;
    bool operator==(const Slot&) const = default;
  };
  struct Bucket {
    int64_t begin;
    int64_t end;  // including padding; the next bucket starts here
    std::vector<Slot> slots;
    bool operator==(const Bucket&) const = default;
  };
  struct Buffer {
    DType dtype;
    DType grad_dtype;
    bool expert;
    int64_t shards;    // number of ranks that shard a bucket; 1 without the distributed optimizer
    int64_t elements;  // including padding
    std::vector<Bucket> buckets;
    bool operator==(const Buffer&) const = default;
  };
  struct Place {
    size_t buffer;
    size_t bucket;
    bool operator==(const Place&) const = default;
  };

  std::vector<Buffer> buffers;
  std::vector<Place> order;  // order of reduction: by arrival of the last gradient of each bucket
  bool operator==(const BucketPlan&) const = default;
};

// Throws ConfigError for sizes below 1, a bucket size below 0 and unsupported types (f32, bf16 and f16 are supported).
BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters, const BucketOptions& options);

// The optimizer's state of one element of a parameter.
struct ElementState {
  double bytes = 0;
  std::string text;  // tensors, types and bytes
};
using StateOfType = std::function<ElementState(DType parameter)>;
// AdamW's in fp32: two moments, and main weights if the parameter is not fp32.
ElementState fp32_adamw_state(DType parameter);

// Bytes of parameters, gradients and the optimizer's state on one rank, including padding.
struct BucketMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // sharded
  int64_t total() const { return parameters + gradients + optimizer; }
};
BucketMemory memory_of(const BucketPlan& plan, const StateOfType& state = fp32_adamw_state);

// Return a human-readable table, and a JSON document.
std::string to_text(const BucketPlan& plan, const std::vector<PlannedParameter>& parameters,
                    const StateOfType& state = fp32_adamw_state);
std::string to_json(const BucketPlan& plan, const std::vector<PlannedParameter>& parameters,
                    const StateOfType& state = fp32_adamw_state);

}  // namespace concord
