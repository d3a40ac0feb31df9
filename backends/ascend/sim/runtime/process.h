// Whether this process has initialised ACL. Threads: any.
#pragma once

namespace concord::ascend::sim {

class Process {
 public:
  static bool initialized();
  // Throws 100002 if it was done before (and counts it); the first one says on standard error what this is.
  static void init();
  // Ends all of them together; 100037 if there is none.
  static void finalize();
  // Ends one of them.
  static void finalize_reference();
};

}  // namespace concord::ascend::sim
