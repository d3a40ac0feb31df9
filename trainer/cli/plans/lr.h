// `concord lr`: the learning rates and weight decays of a run, printed and drawn before it starts. Pure.
#pragma once

#include <string>
#include <vector>

#include "core/optim/lr_schedule.h"

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Parsing runs it; throws ConfigError for an invalid schedule.
void add_lr_command(CLI::App* program);

struct LrPoint {
  int64_t update = 0;  // from 1
  double learning_rate = 0;
  double weight_decay = 0;
};
std::vector<LrPoint> lr_points(const LrArguments& arguments);  // one per update, max_steps in all

std::string lr_csv(const std::vector<LrPoint>& points);
std::string lr_json(const std::vector<LrPoint>& points);
std::string lr_text(const std::vector<LrPoint>& points);  // about twenty of them, with bars
std::string lr_svg(const LrArguments& arguments, const std::vector<LrPoint>& points);

}  // namespace concord
