// The complete C++ API of the platform. Start with current_platform().
#pragma once

#include "platform/cpp/comm.hpp"         // Communicator: collectives and point-to-point transfers
#include "platform/cpp/device.hpp"       // Device, DeviceGuard
#include "platform/cpp/event.hpp"        // Event
#include "platform/cpp/memory.hpp"       // Buffer, HostBuffer, copy, fill
#include "platform/cpp/platform.hpp"     // Platform, current_platform, open_platform
#include "platform/cpp/random_word.hpp"  // random_word: one number on the host
#include "platform/cpp/rng.hpp"          // Generator
#include "platform/cpp/status.hpp"       // Error
#include "platform/cpp/stream.hpp"       // Stream
#include "platform/cpp/types.hpp"        // DType, ReduceOp, CommOp, CopyKind
