// The cpu plugin: the default if there is no accelerator, and the reference that other backends are compared with.
#include "platform/sdk/plugin.hpp"

#include <algorithm>

#include "backends/cpu/comm.h"
#include "backends/cpu/device.h"
#include "backends/cpu/event.h"
#include "backends/cpu/machine.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/rng.h"
#include "backends/cpu/settings.h"
#include "backends/cpu/stream.h"
#include "backends/shm/communicator.h"

namespace concord::cpu {
namespace {

constexpr int32_t kManyRanks = 64;

struct Cpu {
  const Settings settings = read_settings();
  const int64_t memory_bytes = settings.memory_limit > 0 ? std::min(settings.memory_limit, total_memory())
                                                         : total_memory();
  Devices devices{settings.devices, memory_bytes, streams};
  Streams streams{devices, events};
  Events events{devices, streams};
  Memory memory{settings.devices, memory_bytes, devices, streams};
  Communicators communicators{devices, streams, settings.several_hosts};
  Rng rng{streams};

  sdk::Description describe() const {
    return {.name = "cpu",
            .vendor = "any",
            .capabilities = {
                {CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 1, "device memory is host memory"},
                {CONCORD_CAP_MEMORY_STREAM_ORDERED, 1, nullptr},
                {CONCORD_CAP_MEMORY_PEER_COPY, 1, nullptr},
                {CONCORD_CAP_STREAM_NULL, 1, "runs inline, on the calling thread"},
                {CONCORD_CAP_STREAM_HOST_IS_CURRENT, 1, "libtorch's cpu device has no streams"},
                {CONCORD_CAP_STREAM_PRIORITIES, 0, "the threads of all streams have the priority of the process"},
                {CONCORD_CAP_STREAM_HOST_FUNCTIONS, 1, nullptr},
                {CONCORD_CAP_EVENT_TIMING, 1, "with the steady clock"},
                {CONCORD_CAP_COMM_SPLIT, 2, nullptr},
                {CONCORD_CAP_COMM_ABORT, 2, nullptr},
                {CONCORD_CAP_COMM_DETERMINISTIC, 1, "sums are computed in rank order"},
                {CONCORD_CAP_COMM_SHARED_DEVICE, 1, nullptr},
                {CONCORD_CAP_COMM_P2P_SELF, 1, nullptr},
                {CONCORD_CAP_COMM_DETECTS_LOSS, 1, nullptr},
                {CONCORD_CAP_COMM_DETECTS_MISMATCH, 1, nullptr},
                {CONCORD_CAP_COMM_TIMEOUT, 1, nullptr},
                {CONCORD_CAP_COMM_BYTES, shm::bytes_per_rank(kManyRanks),
                 "shared memory, with 64 ranks; fewer ranks need less"},
                {CONCORD_CAP_TORCH_FP8, 1, "the reference: numbers of 8 bits, products in fp32"},
                bf16(),
            }};
  }
  static concord_capability bf16() {
    if (has_bf16_instructions()) return {CONCORD_CAP_TORCH_BF16, 1, nullptr};
    return {CONCORD_CAP_TORCH_BF16, 0,
            "this processor has no instructions for bf16 (avx512_bf16, amx_bf16, or bf16 on ARM), so bf16 is correct, "
            "but many times slower than fp32"};
  }
};

}  // namespace
}  // namespace concord::cpu

CONCORD_PLUGIN(concord::cpu::Cpu)
