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
#include "backends/cuda/activity.h"
#endif
#include "backends/cuda/comm.h"
#include "backends/cuda/device.h"
#include "backends/cuda/event.h"
#include "backends/cuda/graph.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/nccl.h"
#include "backends/cuda/profiler.h"
#include "backends/cuda/rng.h"
#include "backends/cuda/stream.h"

namespace concord::cuda {
namespace {

// The label of results obtained here. The build with fake/, which has no device, returns another.
#if !defined(CONCORD_CUDA_LABEL)
#define CONCORD_CUDA_LABEL "cuda"
#endif

constexpr const char* kTorchLibrary = "libtorch_cuda.so";
constexpr const char* kOperators = "libconcordtorch_cuda_ops.so";

// The kernels of torch/ are there only if the build had libtorch; without them the references run.
std::vector<const char*> torch_libraries() {
  std::vector<const char*> names = {kTorchLibrary};
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&torch_libraries), &self) != 0 &&
      std::filesystem::exists(std::filesystem::path(self.dli_fname).replace_filename(kOperators))) {
    names.push_back(kOperators);
  }
  names.push_back(nullptr);
  return names;
}

// NCCL before 2.30 refuses two ranks on one device, unless it considers them ranks of different hosts. With
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
      {CONCORD_CAP_TORCH_FP8, 1, "in tensor cores from compute capability 8.9 on"},
  };
}

class CudaPlugin : public sdk::Plugin {
 public:
  CudaPlugin() {
    add(core());
    add(sdk::device_table(&devices_));
    add(sdk::memory_table(&memory_));
    add(sdk::stream_table(&streams_));
    add(sdk::event_table(&events_));
    add(sdk::comm_table(&communicators_));
    add(sdk::rng_table(&rng_));
    add(CONCORD_GRAPH_TABLE, graph_table(&graphs_));
    add(CONCORD_PROFILER_TABLE, profiler_table(&profiler_));
#if defined(CONCORD_CUDA_WITH_CUPTI)
    add(CONCORD_ACTIVITY_TABLE, activity_table(&activities_));
#endif
    sdk::log(CONCORD_LOG_DEBUG,
             sdk::text("cuda: NCCL %s from %s", version_text(nccl_.version).c_str(), nccl_.path.c_str()));
  }

 private:
  concord_core_table core() {
    auto table = sdk::new_table<concord_core_table>(this);
    table.name = "cuda";
    table.version = version_.c_str();
    table.vendor = "NVIDIA";
    table.label = CONCORD_CUDA_LABEL;
    table.priority = 100;
    table.capabilities = capabilities_.data();
    table.capability_count = static_cast<int64_t>(capabilities_.size());
    table.torch_device_type = "cuda";
    table.torch_libraries = torch_libraries_.data();
    table.visible_devices_variable = "CUDA_VISIBLE_DEVICES";
    return table;
  }

  Devices devices_;  // first: without a device there is no reason to look for NCCL
  const Nccl nccl_ = load_nccl();
  const std::string version_ = sdk::text("0.1.0 (CUDA %d.%d, NCCL %s)", CUDART_VERSION / 1000,
                                         CUDART_VERSION / 10 % 100, version_text(nccl_.version).c_str());
  const std::vector<concord_capability> capabilities_ = cuda::capabilities(devices_);
  const std::vector<const char*> torch_libraries_ = torch_libraries();
  Memory memory_{devices_};
  Communicators communicators_{devices_, memory_, nccl_};
  Streams streams_{devices_, communicators_};
  Events events_{devices_};
  Rng rng_{devices_};
  Graphs graphs_{communicators_};
  Profiler profiler_;
#if defined(CONCORD_CUDA_WITH_CUPTI)
  Activities activities_;
#endif
};

}  // namespace
}  // namespace concord::cuda

CONCORD_PLUGIN(concord::cuda::CudaPlugin)
