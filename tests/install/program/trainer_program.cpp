// Trains with a custom callback that ends the run after the second step. The arguments are those of `concord train`.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "trainer/pretrain.h"

namespace {

class TwoSteps : public concord::TrainerCallback {
 public:
  void on_step_end(const concord::TrainerState& state, concord::TrainerControl& control) override {
    if (state.global_step == 2) control.should_training_stop = true;
  }
  void on_train_end(const concord::TrainerState& state, const concord::FinishReport&) override {
    std::printf("trained %lld steps of %lld\n", static_cast<long long>(state.global_step),
                static_cast<long long>(state.max_steps));
  }
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> args(argv + 1, argv + argc);
    concord::RunOptions options;
    options.callbacks = {std::make_shared<TwoSteps>()};
    concord::run_training(concord::parse_command_line(args).arguments, {}, options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
