#include "backends/ascend/graph.h"

#include "backends/ascend/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::ascend {

bool Graphs::available(const Acl& acl) {
  return acl.aclmdlRICaptureBegin != nullptr && acl.aclmdlRICaptureGetInfo != nullptr &&
         acl.aclmdlRICaptureEnd != nullptr && acl.aclmdlRIExecuteAsync != nullptr && acl.aclmdlRIDestroy != nullptr;
}

void Graphs::begin_capture(concord_stream stream) {
  const DeviceGuard here(devices_, devices_.device_of(stream));
  const Acl& acl = devices_.acl();
  // Thread-local: what other threads do (a data loader that allocates) neither fails nor ends the capture.
  check_acl(acl, acl.aclmdlRICaptureBegin(vendor(stream), abi::kCaptureThreadLocal), "aclmdlRICaptureBegin");
}

concord_graph Graphs::end_capture(concord_stream stream) {
  const int32_t device = devices_.device_of(stream);
  const DeviceGuard here(devices_, device);
  const Acl& acl = devices_.acl();
  abi::aclmdlRICaptureStatus status = abi::kCaptureNone;
  abi::aclmdlRI captured = nullptr;
  check_acl(acl, acl.aclmdlRICaptureGetInfo(vendor(stream), &status, &captured), "aclmdlRICaptureGetInfo");
  const bool spoiled = status != abi::kCaptureActive;
  const abi::aclError error = acl.aclmdlRICaptureEnd(vendor(stream), &captured);  // also then: it frees the stream
  check_acl(acl, error, "aclmdlRICaptureEnd");
  if (spoiled) {
    if (captured != nullptr) acl.aclmdlRIDestroy(captured);
    sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, "an operation that cannot be captured was called during the capture");
  }
  const auto graph = static_cast<concord_graph>(captured);
  live_.add(graph, device);
  return graph;
}

void Graphs::launch(concord_graph graph, concord_stream stream) {
  sdk::check_not_null(graph, "graph");
  const DeviceGuard here(devices_, devices_.device_of(stream));
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclmdlRIExecuteAsync(graph, vendor(stream)), "aclmdlRIExecuteAsync");
  communicators_.note_graph(stream);
}

void Graphs::destroy(concord_graph graph) {
  if (graph == nullptr) return;
  const DeviceGuard here(devices_, live_.remove(graph));
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclmdlRIDestroy(graph), "aclmdlRIDestroy");
}

}  // namespace concord::ascend
