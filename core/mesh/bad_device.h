// The exception for a device that computes wrong numbers again and again. The program ends with kExitBadDevice
// (core/launch/job/restart_policy.h): to start the job again on the same device would not help.
#pragma once

#include "platform/loader/error.h"

namespace concord {

class BadDevice : public Error {
 public:
  using Error::Error;
};

}  // namespace concord
