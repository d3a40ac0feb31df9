// A custom callback in the training loop: stops the run when the loss is good enough.
//
//   callback 5.0 --config run.yaml                               one process
//   concord launch --nproc 2 -- callback 5.0 --config run.yaml   a job
//
// Arguments after the goal are those of `concord train`.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config_error.h"
#include "trainer/pretrain.h"

namespace {

class StopAtGoal : public concord::TrainerCallback {
 public:
  explicit StopAtGoal(double goal) : goal_(goal) {}

  void on_log(const concord::TrainerState& state, const concord::StepReport& report,
              concord::TrainerControl& control) override {
    if (report.loss >= goal_) return;
    if (state.is_world_process_zero)
      std::printf("callback: goal reached at step %lld\n", static_cast<long long>(state.global_step));
    control.should_training_stop = true;
  }

 private:
  double goal_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw concord::ConfigError("usage: callback GOAL [arguments of concord train]");
    const std::vector<std::string> args(argv + 2, argv + argc);
    const concord::CommandLine line = concord::parse_command_line(args);
    concord::RunOptions options;
    options.callbacks = {std::make_shared<StopAtGoal>(std::atof(argv[1]))};
    concord::run_training(line.arguments, {}, options);
    return 0;
  } catch (const concord::ConfigError& error) {
    std::fprintf(stderr, "callback: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "callback: %s\n", error.what());
    return 1;
  }
}
