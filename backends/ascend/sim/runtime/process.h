// Whether this process has initialised ACL. Threads: any.
#pragma once

namespace concord::ascend::sim {

class Process {
 public:
  static bool initialized();
  // Counts an aclInit. Throws 100002 unless it is the first, which prints on standard error that this is a simulator.
  static void init();
  // Ends all initialisations; throws 100037 if there is none.
  static void finalize();
  // Ends one initialisation.
  static void finalize_reference();
};

}  // namespace concord::ascend::sim
