#include "trainer/cli/probe.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/files/hub_cache.h"
#include "core/base/files/input_file.h"
#include "core/base/files/output_check.h"
#include "core/mesh/job_environment.h"
#include "core/models/adapters/adapter_config.h"
#include "core/models/config.h"
#include "trainer/cli/rank_command.h"
#include "trainer/cli/setting_options.h"
#include "trainer/torch_module/loader.h"

namespace concord {
namespace {

constexpr const char* kProbeFooter =
    R"(The batch is a safetensors file with input_ids and labels, int64 [B, S]; labels follow the
Hugging Face convention (not shifted, -100 is ignored). Optional: position_ids, and cu_seqlens for sequences packed into
one row. The dump contains logits, loss, per_token_loss and whatever the flags add, and does not depend on the layout:
  concord probe --model DIR --batch batch.safetensors --out one.safetensors --grads
  concord probe --model DIR --batch batch.safetensors --out two.safetensors --grads --nproc 2 \
      --tensor_model_parallel_size 2
  concord diff one.safetensors two.safetensors
--nproc starts processes on this machine; torchrun, srun, mpirun and concord launch work too.)";

// All checks that do not need libtorch.
void check_probe_args(const ProbeArguments& given) {
  if (given.model.empty() == given.model_config.empty()) {
    throw ConfigError("probe needs either --model DIR (weights of a folder) or --model_config FILE (new weights)");
  }
  if (given.batch.empty() && !given.options.weights) {
    throw ConfigError("probe needs --batch FILE, or --weights to dump only weights");
  }
  if (given.batch.empty() && (given.options.grads || given.options.activations)) {
    throw ConfigError("--grads and --dump_activations require --batch FILE");
  }
  if (!given.adapter.empty() && given.model.empty()) {
    throw ConfigError("--adapter_name_or_path needs --model DIR, the model that the adapter is for");
  }
  read_model_config(given.model.empty() ? given.model_config : given.model);
  if (!given.adapter.empty()) read_adapter_config(given.adapter);
  if (!given.batch.empty()) InputFile(given.batch, "give a safetensors file");
  const std::filesystem::path folder = std::filesystem::absolute(given.out).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(fmt::format("--out {}: folder {} does not exist", given.out, folder.string()));
  }
}

// Rank 0 writes the file.
void check_probe_output(const ProbeArguments& given) {
  if (read_job_environment().rank != 0) return;
  check_output_file(
      "--out", given.out,
      {.overwrite = given.overwrite, .inputs = {given.model, given.model_config, given.adapter, given.batch}});
}

// --model may be the folder of an adapter, which names its base model.
void resolve_adapter(ProbeArguments* given) {
  given->model = local_model(given->model, "--model");
  given->adapter = local_model(given->adapter, "--adapter_name_or_path");
  if (given->model.empty() || !given->adapter.empty() || !has_adapter(given->model)) return;
  given->adapter = std::exchange(given->model, base_folder_of(given->model));
}

int run_probe(ProbeArguments given, int64_t nproc) {
  resolve_adapter(&given);
  check_probe_args(given);
  check_probe_output(given);
  const int64_t world = ranks_of_command(nproc);
  // Errors are reported before any process waits for another one.
  torch_module().check_probe(given, world);
  if (nproc > 1) return launch_ranks(nproc);
  torch_module().probe(given);
  return 0;
}

void add_probe_settings(CLI::App* app, TrainingArguments* settings) {
  add_settings(app,
               {{.name = "tensor_model_parallel_size"},
                {.name = "context_parallel_size"},
                {.name = "expert_model_parallel_size"},
                {.name = "expert_tensor_parallel_size"},
                {.name = "pipeline_model_parallel_size"},
                {.name = "virtual_pipeline_model_parallel_size"},
                {.name = "pipeline_model_parallel_layout"},
                {.name = "sequence_parallel", .spellings = "--sequence_parallel,!--no_sequence_parallel"},
                {.name = "cp_comm_type"},
                {.name = "recompute_granularity"},
                {.name = "recompute_method"},
                {.name = "recompute_num_layers"},
                {.name = "recompute_modules"},
                {.name = "moe_router_load_balancing_type"},
                {.name = "moe_aux_loss_coeff"},
                {.name = "moe_z_loss_coeff"},
                {.name = "moe_expert_capacity_factor"},
                {.name = "moe_token_drop_policy"},
                {.name = "moe_pad_expert_input_to_capacity"},
                {.name = "mtp_num_layers",
                 .help = "MTP layers to use, at most num_nextn_predict_layers; their losses affect gradients only"},
                {.name = "mtp_loss_scaling_factor"},
                {.name = "platform"},
                {.name = "ddp_timeout"}},
               settings);
}

// Returns |given| with the values of the options that are settings of `concord train` too.
ProbeArguments with_settings(ProbeArguments given, const TrainingArguments& settings) {
  given.model = settings.model.path;
  given.model_config = settings.model.config;
  given.adapter = settings.finetuning.adapter;
  given.layout = settings.pipeline.layout;
  given.sizes = settings.job;
  given.model_options = settings.model_options;
  return given;
}

}  // namespace

void add_probe_command(CLI::App* program, int* exit_code) {
  const auto given = std::make_shared<ProbeArguments>();
  const auto settings = std::make_shared<TrainingArguments>();
  CLI::App* app = program->add_subcommand(
      "probe", "run one forward (and backward) pass on a given batch under any layout and dump the results");
  app->footer(kProbeFooter);
  add_settings(app,
               {{.name = "model"},
                {.name = "adapter_name_or_path",
                 .help = "folder of an adapter; gradients and weights are then those of its tensors, by peft's names"},
                {.name = "model_config"},
                {.name = "seed", .help = "seed of the initialization"}},
               settings.get());
  app->add_option("--batch", given->batch, "safetensors file with input_ids and labels");
  app->add_option("--out", given->out, "safetensors file to write")->required();
  app->add_flag("--overwrite", given->overwrite, "replace an existing file");
  add_dtype(app, &given->dtype);
  app->add_flag("--grads", given->options.grads, "add grad.NAME, the gradient of the mean loss, for each HF parameter");
  app->add_flag("--dump_activations", given->options.activations, "add activation.NUMBER.PART, in model order");
  app->add_flag("--weights", given->options.weights, "add weight.NAME; --batch is then optional");
  app->add_flag("--json", given->json, "print one JSON document");
  add_nproc(app, settings.get());
  add_probe_settings(app, settings.get());
  app->callback([given, settings, exit_code] {
    use_platform(settings->job.platform);
    *exit_code = run_probe(with_settings(*given, *settings), settings->launch.nproc);
  });
}

}  // namespace concord
