// The spare processes of a launcher (spare_state.h): starts them one after another while a job trains, and hands them
// over as ranks. Waits only for exec. Threads: launcher thread only.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "core/launch/job/spare_state.h"
#include "core/launch/processes/process_start.h"
#include "core/launch/processes/session_guard.h"

namespace concord {

class SparePool {
 public:
  // |guard| outlives it and has slots for spares, starting at |first_slot|.
  SparePool(int spares, SessionGuard* guard, int first_slot);
  ~SparePool();  // kills the remaining spares and waits for their exit
  SparePool(const SparePool&) = delete;
  SparePool& operator=(const SparePool&) = delete;

  // Call when an attempt begins: spares that have died may be started again.
  void renew();
  // Call while ranks train. Records which spares are ready, and starts the next one with |command|, the command of a
  // rank. If a spare cannot be started, the job continues without it.
  void tick(ProcessCommand command);
  // Turns a spare into a rank with |environment|; returns nullopt if there is no spare.
  std::optional<StartedProcess> take(const std::vector<std::string>& environment);

  bool owns(pid_t process) const;                                       // whether |process| is a spare, not a rank
  void ended(pid_t process);                                            // call before its pid can be reused
  int handed_over() const { return static_cast<int>(handed_.size()); }  // since renew()

 private:
  struct Spare {
    StartedProcess process;
    UniqueFd control;  // the launcher's end of its standard input
  };

  SpareOrder apply(size_t place, SpareEvent event);
  void note_ready();
  void start(size_t place, ProcessCommand command);
  void drop(size_t place, SpareEvent event);

  SessionGuard* guard_;
  int first_slot_;
  std::vector<SparePhase> phases_;
  std::vector<Spare> spares_;
  // Sockets of spares that have become ranks in this attempt. They stay open: a spare that was still loading reports
  // that it is ready, and a broken connection would discard the environment that it has not read yet.
  std::vector<UniqueFd> handed_;
};

}  // namespace concord
