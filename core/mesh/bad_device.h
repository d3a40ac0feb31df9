// The exception for a device that repeatedly computes wrong results. The program exits with kExitBadDevice
// (core/launch/job/restart_policy.h), since a restart on the same device would not help.
#pragma once

#include "platform/loader/error.h"

namespace concord {

class BadDevice : public Error {
 public:
  using Error::Error;
};

}  // namespace concord
