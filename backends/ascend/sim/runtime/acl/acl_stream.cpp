// Streams, host functions, captured work.
#include <map>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/capture.h"
#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/faults.h"
#include "backends/ascend/sim/runtime/machine.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

HandleTable<Capture>& models() {
  static auto& table = *new HandleTable<Capture>(0x1d, "captured model");
  return table;
}

void synchronize(aclrtStream stream, int32_t milliseconds) {
  const std::shared_ptr<Stream> on = machine().stream(stream);
  if (milliseconds < -1 || milliseconds == 0) {
    fail(kRtParamInvalid, text("a timeout of %d ms; it must be > 0, or -1 for none", milliseconds));
  }
  on->require_not_captured("waiting for a stream");
  Capture::require_allowed("waiting for a stream");
  on->queue()->synchronize(on->queue()->pushed(), milliseconds, kRtStreamSyncTimeout);
}

}  // namespace

aclError aclrtCreateStream(aclrtStream* stream) {
  return guarded(__func__, [&] {
    require_not_null(stream, "stream");
    *stream = machine().create_stream();
  });
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t /*priority: the vendor ignores it too*/,
                                     uint32_t flags) {
  return guarded(__func__, [&] {
    require_not_null(stream, "stream");
    if ((flags & ~(kStreamFastLaunch | kStreamFastSync)) != 0) {
      fail(kRtFeatureNotSupport, text("stream flags 0x%x; FAST_LAUNCH (0x1) and FAST_SYNC (0x2) are simulated", flags));
    }
    *stream = machine().create_stream();
  });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return guarded(__func__, [&] { machine().destroy_stream(stream, false); });
}

aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return guarded(__func__, [&] { machine().destroy_stream(stream, true); });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return guarded(__func__, [&] { synchronize(stream, -1); });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t milliseconds) {
  return guarded(__func__, [&] { synchronize(stream, milliseconds); });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return guarded(__func__, [&] {
    require_not_null(status, "status");
    const std::shared_ptr<Stream> on = machine().stream(stream);
    on->require_not_captured("querying a stream");
    *status = on->queue()->reached(on->queue()->pushed()) ? kStreamComplete : kStreamNotReady;
  });
}

aclError aclrtStreamAbort(aclrtStream stream) {
  return guarded(__func__, [&] {
    require_not_null(stream, "stream");
    machine().any_stream(stream)->queue()->abort(kRtStreamAbort);
  });
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  return guarded(__func__, [&] {
    require_not_null(id, "streamId");
    *id = machine().stream(stream)->id();
  });
}

aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode) {
  return guarded(__func__, [&] {
    if (mode != kFailureContinue && mode != kFailureStop) {
      fail(kRtParamInvalid,
           text("failure mode %llu; there are 0 (continue) and 1 (stop)", static_cast<unsigned long long>(mode)));
    }
    if (stream == nullptr) fail(kRtFeatureNotSupport, "the failure mode of a default stream cannot be set");
    machine().stream(stream)->queue()->set_stop_on_failure(mode == kFailureStop);
  });
}

// |value| is a union of numbers: the first 32 bits, or for the failure mode 64.
int32_t aclrtSetStreamAttribute(void* stream, int32_t attribute, const void* value) {
  return guarded(__func__, [&] {
    constexpr int32_t kFailureMode = 1, kCacheOpInfo = 4;
    require_not_null(value, "value");
    const std::shared_ptr<Stream> on = machine().stream(stream);
    if (attribute != kFailureMode && attribute != kCacheOpInfo) {
      fail(kRtFeatureNotSupport,
           text("stream attribute %d; FAILURE_MODE (1) and CACHE_OP_INFO (4) are simulated", attribute));
    }
    // What is cached of operators is for profilers to show, and changes nothing.
    const uint64_t given =
        attribute == kFailureMode ? *static_cast<const uint64_t*>(value) : *static_cast<const uint32_t*>(value);
    if (given > 1) fail(kRtParamInvalid, text("%llu; there are 0 and 1", static_cast<unsigned long long>(given)));
    if (attribute == kFailureMode) on->queue()->set_stop_on_failure(given == kFailureStop);
  });
}

aclError aclrtDeviceGetStreamPriorityRange(int32_t* least, int32_t* greatest) {
  return guarded(__func__, [&] {
    require_not_null(least, "leastPriority");
    require_not_null(greatest, "greatestPriority");
    machine().current();
    *least = 7;
    *greatest = 0;
  });
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* arguments) {
  return guarded_queueing(__func__, [&](const WorkFault& fault) {
    require_not_null(reinterpret_cast<void*>(function), "fn");
    machine().stream(stream)->submit({"aclrtLaunchHostFunc", [=] { function(arguments); }, nullptr, fault});
  });
}

// -------------------------------------------------------------------------------------------------------------- events

aclError aclrtCreateEvent(aclrtEvent* event) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    *event = machine().create_event(Event::Kind::kPlain, kEventSync | kEventTimeLine);
  });
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flags) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    *event = machine().create_event(Event::Kind::kFlag, flags);
  });
}

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flags) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    *event = machine().create_event(Event::Kind::kReusable, flags);
  });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    machine().destroy_event(event);
  });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    machine().event(event)->record(machine().stream(stream));
  });
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    machine().event(event)->reset(machine().stream(stream));
  });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    machine().event(event)->wait(machine().stream(stream), {});
  });
}

aclError aclrtStreamWaitEventWithTimeout(aclrtStream stream, aclrtEvent event, int32_t milliseconds) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    if (milliseconds < 0) fail(kRtParamInvalid, text("a timeout of %d ms; it must be >= 0 (0: none)", milliseconds));
    machine().event(event)->wait(machine().stream(stream), std::chrono::milliseconds(milliseconds));
  });
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    require_not_null(status, "status");
    *status = machine().event(event)->query() ? kEventRecordedComplete : kEventRecordedNotReady;
  });
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    require_not_null(status, "status");
    *status = machine().event(event)->all_waits_done() ? kEventWaitComplete : kEventWaitNotReady;
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    Capture::require_allowed("waiting for an event");
    machine().event(event)->synchronize(-1);
  });
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t milliseconds) {
  return guarded(__func__, [&] {
    require_not_null(event, "event");
    if (milliseconds < -1 || milliseconds == 0) {
      fail(kRtParamInvalid, text("a timeout of %d ms; it must be > 0, or -1 for none", milliseconds));
    }
    Capture::require_allowed("waiting for an event");
    machine().event(event)->synchronize(milliseconds);
  });
}

aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  return guarded(__func__, [&] {
    require_not_null(milliseconds, "ms");
    require_not_null(start, "startEvent");
    require_not_null(end, "endEvent");
    const int64_t from = machine().event(start)->reached_at("start");
    const int64_t to = machine().event(end)->reached_at("end");
    *milliseconds = static_cast<float>(static_cast<double>(to - from) * 1e-6);
  });
}

// ------------------------------------------------------------------------------------------------------- captured work

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
  return guarded(__func__, [&] {
    const std::shared_ptr<Capture> capture = Capture::begin(machine().stream(stream), mode);
    capture->set_handle(models().insert(capture));
  });
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status, aclmdlRI* model) {
  return guarded(__func__, [&] {
    const std::shared_ptr<Capture> capture = machine().stream(stream)->capture();
    if (status != nullptr) *status = capture == nullptr ? kCaptureNone : capture->status();
    if (model != nullptr) *model = capture == nullptr ? nullptr : capture->handle();
  });
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* model) {
  return guarded(__func__, [&] {
    require_not_null(model, "modelRI");
    *model = nullptr;
    const std::shared_ptr<Stream> on = machine().stream(stream);
    const std::shared_ptr<Capture> capture = on->capture();
    try {
      *model = Capture::end(on)->handle();
    } catch (const Error&) {  // a capture that has ended without a model, and not one that goes on
      if (capture != nullptr && on->capture() == nullptr) models().remove(capture->handle());
      throw;
    }
  });
}

int32_t aclmdlRIGetId(void* model, uint32_t* id) {
  return guarded(__func__, [&] {
    require_not_null(model, "modelRI");
    require_not_null(id, "modelRIId");
    *id = models().share_locked(model)->id();
  });
}

int32_t aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  return guarded(__func__, [&] {
    require_not_null(mode, "mode");
    *mode = Capture::exchange_thread_mode(*mode);
  });
}

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
  return guarded(__func__, [&] {
    require_not_null(model, "modelRI");
    const std::shared_ptr<Stream> on = machine().stream(stream);
    on->require_not_captured("running a captured model");
    models().share_locked(model)->run_on(*on);
  });
}

aclError aclmdlRIDestroy(aclmdlRI model) {
  return guarded(__func__, [&] {
    require_not_null(model, "modelRI");
    models().remove(model);
  });
}
