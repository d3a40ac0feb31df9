// The ascend plugin: CANN's runtime and HCCL. This file fills the tables, nothing else.
#include "platform/sdk/plugin.hpp"

#include <cstdlib>
#include <string>
#include <vector>

#include "backends/ascend/average.h"
#include "backends/ascend/cann.h"
#include "backends/ascend/comm.h"
#include "backends/ascend/device.h"
#include "backends/ascend/event.h"
#include "backends/ascend/graph.h"
#include "backends/ascend/memory.h"
#include "backends/ascend/profiler/activity.h"
#include "backends/ascend/profiler/profiler.h"
#include "backends/ascend/rng.h"
#include "backends/ascend/stream.h"

namespace concord::ascend {
namespace {

// HCCL_BUFFSIZE is in MB; each communicator has two such buffers.
int64_t communicator_bytes() {
  constexpr int64_t kDefaultMegabytes = 200;
  const char* given = std::getenv("HCCL_BUFFSIZE");
  const int64_t megabytes = given != nullptr ? std::atoll(given) : kDefaultMegabytes;
  return 2 * (megabytes > 0 ? megabytes : kDefaultMegabytes) << 20;
}

// HCCL reads the variable at its first communicator; a value that the user has set stays.
bool hccl_is_deterministic() {
  const char* const wanted = sdk::config("deterministic");
  if (wanted != nullptr && std::string(wanted) == "1") setenv("HCCL_DETERMINISTIC", "true", 0);
  const char* given = std::getenv("HCCL_DETERMINISTIC");
  const std::string value = given != nullptr ? given : "";
  return value == "true" || value == "TRUE" || value == "strict" || value == "STRICT";
}

std::vector<concord_capability> capabilities(const Acl& acl, const std::string& soc) {
  const bool host_functions = acl.aclrtLaunchHostFunc != nullptr;
  const bool priorities = acl.aclrtDeviceGetStreamPriorityRange != nullptr;
  const bool deterministic = hccl_is_deterministic();
  const bool chip_has_fp8 = soc.starts_with("Ascend950");
  return {
      {CONCORD_CAP_MEMORY_HOST_ACCESSIBLE, 0, "device memory is not mapped into the host"},
      {CONCORD_CAP_MEMORY_STREAM_ORDERED, 0,
       "ACL allocates and frees immediately; libtorch's allocator is stream-ordered"},
      {CONCORD_CAP_MEMORY_PEER_COPY, 1, nullptr},
      {CONCORD_CAP_STREAM_NULL, 0, "HCCL does not accept the null stream; use one from stream.create or libtorch"},
      {CONCORD_CAP_STREAM_PRIORITIES, priorities ? 1 : 0,
       priorities ? nullptr : "this CANN has no aclrtDeviceGetStreamPriorityRange"},
      {CONCORD_CAP_STREAM_HOST_FUNCTIONS, host_functions ? 1 : 0,
       host_functions ? nullptr : "this CANN has no aclrtLaunchHostFunc; it needs 8.5 or later"},
      {CONCORD_CAP_EVENT_TIMING, 1, nullptr},
      {CONCORD_CAP_COMM_SPLIT, 2, "from the first communicator by HcclCreateSubCommConfig, otherwise by a new set-up"},
      {CONCORD_CAP_COMM_ABORT, 0, "HCCL cannot abort operations; HCCL_EXEC_TIMEOUT ends them"},
      {CONCORD_CAP_COMM_DETERMINISTIC, deterministic ? 1 : 0,
       deterministic ? "HCCL_DETERMINISTIC is set" : "set HCCL_DETERMINISTIC=true"},
      {CONCORD_CAP_COMM_SHARED_DEVICE, 0, "HCCL needs one device per rank"},
      {CONCORD_CAP_COMM_P2P_SELF, 1, "as a copy"},
      {CONCORD_CAP_COMM_DETECTS_LOSS, 0, "HCCL reports a lost peer as a timeout (HCCL_EXEC_TIMEOUT)"},
      {CONCORD_CAP_COMM_DETECTS_MISMATCH, 0, "HCCL does not compare the ranks' calls"},
      {CONCORD_CAP_COMM_TIMEOUT, 0, "HCCL's timeouts are per process: HCCL_CONNECT_TIMEOUT, HCCL_EXEC_TIMEOUT"},
      {CONCORD_CAP_COMM_BYTES, communicator_bytes(), "2 x HCCL_BUFFSIZE; none for a single rank"},
      {CONCORD_CAP_TORCH_FP8, 0,
       chip_has_fp8 ? "the chip has FP8, but no kernel for it has been tried"
                    : "the chip has no FP8; Ascend950 and later have"},
      {CONCORD_CAP_TORCH_BF16, 1, nullptr},
  };
}

struct Ascend {
  const Acl acl = load_acl();
  Devices devices{acl};  // before HCCL: without a device there is no reason to look for it
  const Hccl hccl = load_hccl();
  const Averages averages{devices};
  Memory memory{devices};
  Communicators communicators{devices, memory, hccl, averages};
  Streams streams{devices, communicators};
  Events events{devices};
  Rng rng{devices, memory, events};
  Graphs graphs{devices, communicators};
  Profiler profiler;
  Activities activities;

  bool has_graphs() const { return Graphs::available(acl); }

  sdk::Description describe() const {
    sdk::log(CONCORD_LOG_DEBUG, sdk::text("ascend: CANN %s from %s, HCCL from %s", acl.version.c_str(),
                                          acl.path.c_str(), hccl.path.c_str()));
    const bool simulated = !acl.simulator.empty();
    return {
        .name = "ascend",
        .vendor = "Huawei",
        .version = sdk::text("0.1.0 (CANN %s, %s%s%s)", acl.version.c_str(), devices.soc_name().c_str(),
                             simulated ? ", " : "", acl.simulator.c_str()),
        .label = acl.simulator,
        .priority = simulated ? -1 : 100,  // a simulator is never chosen automatically
        .capabilities = capabilities(acl, devices.soc_name()),
        .torch_device_type = "privateuseone",
        .torch_device_name = "npu",
        .torch_libraries = {"libconcordtorch_ascend.so"},  // backends/ascend/torch
        .visible_devices_variable = "ASCEND_RT_VISIBLE_DEVICES",
    };
  }
};

}  // namespace
}  // namespace concord::ascend

CONCORD_PLUGIN(concord::ascend::Ascend)
