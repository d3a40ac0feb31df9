#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "core/base/quoted.h"
#include "core/data_parallel/bucket_plan.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

int64_t used(const BucketPlan::Bucket& bucket) {
  int64_t elements = 0;
  for (const BucketPlan::Slot& slot : bucket.slots) elements += slot.end - slot.begin;
  return elements;
}

std::string bucket_line(const BucketPlan::Bucket& bucket, size_t index, int64_t shards,
                        const std::vector<PlannedParameter>& parameters) {
  const int64_t size = bucket.end - bucket.begin;
  std::string names = one_line(parameters[bucket.slots.front().parameter].name);
  if (bucket.slots.size() > 1) names += " ... " + one_line(parameters[bucket.slots.back().parameter].name);
  return fmt::format("  {:>6} {:>14} {:>14} {:>12} {:>9} {:>14}  {}\n", index, bucket.begin, size, bucket.slots.size(),
                     size - used(bucket), size / shards, names);
}

ordered_json bucket_json(const BucketPlan::Bucket& bucket, const std::vector<PlannedParameter>& parameters) {
  ordered_json slots = ordered_json::array();
  for (const BucketPlan::Slot& slot : bucket.slots) {
    slots.push_back({{"name", parameters[slot.parameter].name}, {"begin", slot.begin}, {"end", slot.end}});
  }
  return {{"begin", bucket.begin}, {"end", bucket.end}, {"parameters", slots}};
}

std::string megabytes(int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

}  // namespace

std::string to_text(const BucketPlan& plan, const std::vector<PlannedParameter>& parameters, const StateOfType& state) {
  std::string text;
  for (const BucketPlan::Buffer& buffer : plan.buffers) {
    text += fmt::format("{} parameters of {}, gradients in {}: {} elements in {} {}, {} per bucket\n",
                        buffer.expert ? "expert" : "dense", to_string(buffer.dtype), to_string(buffer.grad_dtype),
                        buffer.elements, buffer.buckets.size(), buffer.buckets.size() == 1 ? "bucket" : "buckets",
                        buffer.shards > 1 ? fmt::format("{} shards", buffer.shards) : "one shard");
    const ElementState element = state(buffer.dtype);
    text += fmt::format("  optimizer state per element of a shard: {} = {:g} bytes\n", element.text, element.bytes);
    text += "  bucket          begin       elements   parameters   padding          shard  first ... last\n";
    for (size_t k = 0; k < buffer.buckets.size(); ++k) {
      text += bucket_line(buffer.buckets[k], k, buffer.shards, parameters);
    }
  }
  const BucketMemory memory = memory_of(plan, state);
  text += fmt::format(
      "memory per rank: parameters {} + gradients {} + optimizer {} = {}\n"
      "  (elements x bytes of the dtype, of the gradient dtype, and of the state, divided by the shards)\n",
      megabytes(memory.parameters), megabytes(memory.gradients), megabytes(memory.optimizer),
      megabytes(memory.total()));
  return text;
}

std::string to_json(const BucketPlan& plan, const std::vector<PlannedParameter>& parameters, const StateOfType& state) {
  ordered_json buffers = ordered_json::array();
  for (const BucketPlan::Buffer& buffer : plan.buffers) {
    ordered_json buckets = ordered_json::array();
    for (const BucketPlan::Bucket& bucket : buffer.buckets) buckets.push_back(bucket_json(bucket, parameters));
    buffers.push_back({{"dtype", to_string(buffer.dtype)},
                       {"grad_dtype", to_string(buffer.grad_dtype)},
                       {"expert", buffer.expert},
                       {"shards", buffer.shards},
                       {"elements", buffer.elements},
                       {"state", state(buffer.dtype).text},
                       {"buckets", buckets}});
  }
  ordered_json order = ordered_json::array();
  for (const BucketPlan::Place& place : plan.order) order.push_back({place.buffer, place.bucket});
  const BucketMemory memory = memory_of(plan, state);
  const ordered_json document = {{"buffers", buffers},
                                 {"order", order},
                                 {"bytes",
                                  {{"parameters", memory.parameters},
                                   {"gradients", memory.gradients},
                                   {"optimizer", memory.optimizer},
                                   {"total", memory.total()}}}};
  return document.dump();
}

}  // namespace concord
