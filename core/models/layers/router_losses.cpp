#include "core/models/layers/router_losses.h"

#include <fmt/core.h>

#include "core/base/config_error.h"

namespace concord {
namespace {

Balancing balancing_of(const MoeArgs& args, const ExpertConfig& experts) {
  if (args.router_load_balancing_type != Balancing::from_config) return args.router_load_balancing_type;
  return experts.output_router_logits ? Balancing::pooled : Balancing::aux;
}

void check_not_negative(const char* name, double value) {
  if (value >= 0) return;
  throw ConfigError(fmt::format("{} is {}; must be >= 0", name, value));
}

}  // namespace

RouterLosses router_losses(const MoeArgs& args, const ExpertConfig& experts) {
  check_not_negative("moe_aux_loss_coeff", args.aux_loss_coeff);
  check_not_negative("moe_z_loss_coeff", args.z_loss_coeff);
  RouterLosses losses{balancing_of(args, experts), args.aux_loss_coeff, args.z_loss_coeff};
  if (losses.balancing == Balancing::pooled && losses.coefficient == 0) {
    losses.coefficient = experts.router_aux_loss_coef;
  }
  if (experts.sigmoid_scores && losses.balancing == Balancing::pooled && losses.balances()) {
    throw ConfigError(
        "the load-balancing loss of transformers (pooled_aux_loss, output_router_logits) is for softmax scores; for "
        "this "
        "model set moe_router_load_balancing_type to seq_aux_loss, aux_loss, global_aux_loss or none");
  }
  return losses;
}

}  // namespace concord
