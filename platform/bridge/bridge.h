// The bridge: a platform for groups whose ranks are on different platforms.
//
// The bridge has the memory of a device, and the streams, events and communicators of the host platform, "cpu", which
// a process of any vendor can load in addition. An operation stages its buffers through pinned host memory
// (staged_comm.h) and crosses in shared memory or over the network, like the host platform's own; reductions are
// computed there, in rank order, so all ranks get the same bits, whatever their platforms. Callers use it like any
// communicator, except that its streams are queues of host threads: the host waits for a result, since no stream of the
// device can.
#pragma once

#include <string>
#include <vector>

#include "platform/cpp/device.hpp"

namespace concord::bridge {

inline constexpr const char* kHostPlatform = "cpu";
// Ranks can only meet if this is equal: the host platform's messages, and the division into chunks (chunk_plan.h).
inline constexpr int kWireFormat = 1;

// Returns the bridge of |device|, as device 0 of a platform called "bridge_NAME". Throws Error if the host platform
// cannot be opened. Threads: any.
Device bridge_device(const Device& device);

// As bridge_device(), as the loader would return it.
const loader::Plugin& open_bridge(const Device& device);

}  // namespace concord::bridge
