// Asked to end: SIGTERM (a scheduler wants the machine back) or a first SIGINT. The step that runs is finished first. A
// second SIGINT ends the process at once, as it would without this.
//
// One at a time in a process; the signals mean again what they meant before when it goes. Threads: any.
#pragma once

#include <csignal>
#include <string>

namespace concord {

class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const;
  std::string signal_name() const;  // "SIGTERM"; empty where none has come

 private:
  struct sigaction before_term_{};
  struct sigaction before_int_{};
};

}  // namespace concord
