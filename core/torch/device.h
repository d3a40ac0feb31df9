// Mapping between libtorch's devices and a platform's: the same device, memory and streams.
//
// A plugin names its libtorch device in its core table: the device type, and the libraries that register it. Concord
// links only libtorch_cpu; everything else is loaded here, at the plugin's request. Tensors on the device can then be
// passed to the platform by their data_ptr, and libtorch's streams by their native handle.
#pragma once

#include <c10/core/Device.h>

#include "platform/cpp/platform.hpp"
#include "platform/cpp/stream.hpp"

namespace concord {

// Returns libtorch's device for device |index| of |platform|. The first call for a platform loads its libraries for the
// whole process (which may take a second) and names the device type; later calls are cheap. libtorch has one cpu
// device, which represents all devices of a platform that computes on it. Throws Error: INVALID_ARGUMENT if there is no
// device |index|; UNAVAILABLE with every path tried if a library cannot be loaded, or if libtorch does not know the
// device type afterwards. A failed load is retried by the next call. Call before libtorch does other work, since it
// checks once whether there is CUDA and caches the result (initialize() does). Threads: any thread; concurrent calls
// wait for the one that loads.
c10::Device torch_device(const Platform& platform, int32_t index);

// Returns libtorch's current stream of the calling thread on |device|, as a stream of the platform. libtorch owns it.
// For a platform that computes on the cpu it is the null stream: libtorch and the plugin work inline there.
Stream torch_stream(const Device& device);

// Waits until libtorch has queued all work of |device| on its streams, not until it is done. torch_npu queues work from
// a dedicated thread, which ends the process with an error if it is still working while the process exits. Errors
// are ignored: they belong to the calls that queued the work.
void flush_torch(const Device& device) noexcept;

}  // namespace concord
