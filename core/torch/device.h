// Where libtorch and a platform meet: the same device, the same memory, the same streams.
//
// A plugin names its libtorch side in its core table: the device type, and the libraries that teach libtorch about it.
// Concord links only libtorch_cpu; everything else is loaded here, at the plugin's request. Tensors on the
// device can then be passed to the platform by their data_ptr, and libtorch's streams by their native handle.
#pragma once

#include <c10/core/Device.h>

#include "platform/cpp/platform.hpp"
#include "platform/cpp/stream.hpp"

namespace concord {

// libtorch's device for device |index| of |platform|. The first call of a platform loads its libraries for the whole
// process (this may take a second) and gives the device type its name; later ones cost little. libtorch has one cpu
// device, so all devices of a platform that computes on it are that one. Throws Error: INVALID_ARGUMENT for an index
// that is not there; UNAVAILABLE with every place tried if a library cannot be loaded, or where libtorch does not
// know the device type afterwards. A failed load is tried again. Ask before libtorch does other work: it looks once
// whether there is CUDA, and keeps to what it saw. (initialize asks.) Threads: any thread; a thread that asks while
// another thread is loading waits for it.
c10::Device torch_device(const Platform& platform, int32_t index);

// libtorch's current stream of the calling thread on |device|, as a stream of the platform. libtorch owns it. For a
// platform that computes on the cpu it is the null stream: libtorch works inline there, and so does the plugin.
Stream torch_stream(const Device& device);

}  // namespace concord
