// The cuda plugin: CUDA's runtime and NCCL. This file fills the tables, nothing else.
#include "platform/sdk/plugin.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#if defined(CONCORD_CUDA_WITH_CUPTI)
#include "backends/cuda/profiler/activity.h"
#endif
#include "backends/cuda/comm.h"
#include "backends/cuda/device.h"
#include "backends/cuda/event.h"
#include "backends/cuda/graph.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/nccl/nccl.h"
#include "backends/cuda/profiler/profiler.h"
#include "backends/cuda/rng.h"
#include "backends/cuda/stream.h"

namespace concord::cuda {
namespace {

// The label of results obtained here. The build with fake/, which has no device, has a different one.
#if !defined(CONCORD_CUDA_LABEL)
#define CONCORD_CUDA_LABEL "cuda"
#endif

constexpr const char* kTorchLibrary = "libtorch_cuda.so";
constexpr const char* kOperators = "libconcordtorch_cuda_ops.so";

// The kernels of torch/ exist only if the build had libtorch; without them the references run.
std::vector<const char*> torch_libraries() {
  Dl_info self{};
  const bool has_operators =
      dladdr(reinterpret_cast<const void*>(&torch_libraries), &self) != 0 &&
      std::filesystem::exists(std::filesystem::path(self.dli_fname).replace_filename(kOperators));
  return has_operators ? std::vector{kTorchLibrary, kOperators} : std::vector{kTorchLibrary};
}

// NCCL before 2.30 rejects two ranks on one device, unless it considers them ranks of different hosts. With
// CONCORD_CUDA_SHARED_DEVICE=1 each process is one; they then talk over loopback. NCCL reads the variables when its
// first communicator is made. Inherited values are overwritten: a launcher's are not those of its processes.
concord_capability shared_device() {
  const char* const wanted = sdk::config("cuda.shared_device");
  if (wanted != nullptr && std::string_view(wanted) == "1") {
    setenv("NCCL_HOSTID", sdk::text("concord-%d", static_cast<int>(getpid())).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_IB_DISABLE", "1", 0);
  }
  if (std::getenv("NCCL_HOSTID") != nullptr) {
    return {CONCORD_CAP_COMM_SHARED_DEVICE, 1, "NCCL_HOSTID is set: each process needs a different value"};
  }
  return {CONCORD_CAP_COMM_SHARED_DEVICE, 0,
          "NCCL needs one device per rank; for experiments on one device set CONCORD_CUDA_SHARED_DEVICE=1"};
}

// NCCL sums in an order that depends only on the sizes and the topology, unless the switch adds (NVLS). cuBLAS takes
// the same algorithms in every run if its workspaces are fixed, which libtorch insists on. Both read their variables at
// their first use; values that the user has set stay.
concord_capability deterministic_sums() {
  const char* const wanted = sdk::config("deterministic");
  if (wanted == nullptr || std::string_view(wanted) != "1") {
    return {CONCORD_CAP_COMM_DETERMINISTIC, 0,
            "the order of a sum depends on NCCL's choice of algorithm; CONCORD_DETERMINISTIC=1 fixes it"};
  }
  setenv("NCCL_ALGO", "^NVLS,NVLSTree", 0);
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  return {CONCORD_CAP_COMM_DETERMINISTIC, 1, "CONCORD_DETERMINISTIC is set: NCCL leaves sums by the switch (NVLS) out"};
}

std::vector<concord_capability> capabilities(const Devices& devices) {
  const bool pools = devices.all_have(cudaDevAttrMemoryPoolsSupported);
  return {
      {CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 0, "device memory is not mapped into the host"},
      {CONCORD_CAP_MEMORY_STREAM_ORDERED, pools ? 1 : 0, pools ? nullptr : "a device has no memory pools"},
      {CONCORD_CAP_MEMORY_PEER_COPY, 1, nullptr},
      {CONCORD_CAP_STREAM_NULL, 1, "the default stream of the calling thread's device"},
      {CONCORD_CAP_STREAM_PRIORITIES, 1, nullptr},
      {CONCORD_CAP_STREAM_HOST_FUNCTIONS, 1, nullptr},
      {CONCORD_CAP_EVENT_TIMING, 1, nullptr},
      {CONCORD_CAP_COMM_SPLIT, 2, nullptr},
      {CONCORD_CAP_COMM_ABORT, 1,
       "NCCL aborts only the caller's rank: it gets ABORTED, its peers see a lost peer or a timeout"},
      deterministic_sums(),
      shared_device(),
      {CONCORD_CAP_COMM_P2P_SELF, 1, nullptr},
      {CONCORD_CAP_COMM_DETECTS_LOSS, 0,
       "NCCL detects a closed connection (PEER_LOST), but not over NVLink or shared memory (TIMEOUT)"},
      {CONCORD_CAP_COMM_DETECTS_MISMATCH, 0, "NCCL does not compare the ranks' calls"},
      {CONCORD_CAP_COMM_TIMEOUT, 1, nullptr},
      {CONCORD_CAP_COMM_BYTES, 0, "depends on the topology; NCCL does not report it"},
      {CONCORD_CAP_TORCH_FP8, 1, "in tensor cores of compute capability 8.9 or later"},
      {CONCORD_CAP_TORCH_BF16, 1, "in tensor cores of compute capability 8.0 or later"},
  };
}

struct Cuda {
  Devices devices;  // first: without a device there is no reason to look for NCCL
  const Nccl nccl = load_nccl();
  Memory memory{devices};
  Communicators communicators{devices, memory, nccl};
  Streams streams{devices, communicators};
  Events events{devices};
  Rng rng{devices};
  Graphs graphs{communicators};
  Profiler profiler;
#if defined(CONCORD_CUDA_WITH_CUPTI)
  Activities activities;
#endif

  sdk::Description describe() const {
    const std::string version = version_text(nccl.version);
    sdk::log(CONCORD_LOG_DEBUG, sdk::text("cuda: NCCL %s from %s", version.c_str(), nccl.path.c_str()));
    return {
        .name = "cuda",
        .vendor = "NVIDIA",
        .version =
            sdk::text("0.1.0 (CUDA %d.%d, NCCL %s)", CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100, version.c_str()),
        .label = CONCORD_CUDA_LABEL,
        .priority = 100,
        .capabilities = capabilities(devices),
        .torch_device_type = "cuda",
        .torch_libraries = torch_libraries(),
        .visible_devices_variable = "CUDA_VISIBLE_DEVICES",
    };
  }
};

}  // namespace
}  // namespace concord::cuda

CONCORD_PLUGIN(concord::cuda::Cuda)
