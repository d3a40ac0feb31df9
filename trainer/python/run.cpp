#include "trainer/python/run.h"

#include <fmt/format.h>

#include "core/base/config_error.h"
#include "core/mesh/initialize.h"
#include "core/mesh/job_environment.h"
#include "trainer/arguments/hub_names.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/first_run.h"
#include "trainer/stop_request.h"

namespace concord {
namespace {

void check_places(const CommandLine& line) {
  if (line.help || line.print_config || line.json) {
    throw ConfigError("help, print_config and json are options of the program `concord train`; remove them");
  }
  const LaunchArguments& launch = line.arguments.launch;
  if (launch.nproc > 1 || launch.nnodes > 1) {
    throw ConfigError(fmt::format(
        "nproc is {} and nnodes {}, but a Python process is one rank; start the script with `concord launch "
        "--nproc {} -- python SCRIPT`, or with torchrun, and remove nproc and nnodes",
        launch.nproc, launch.nnodes, std::max<int64_t>(launch.nproc, 1)));
  }
}

// As `concord train --nproc 1` does.
void begin_first_run(CommandLine* line) {
  line->arguments.launch.nproc = 1;
  complete_first_run(line);
  check_arguments(line->arguments, 1);
  line->arguments = resolve_arguments(line->arguments, 1);
  const OutputRequest request = output_request(line->arguments, {});
  const std::unique_ptr<RunLock> lock = lock_output_folder(request);
  check_output_folder(request);
  line->notes.push_back(write_first_run(&line->arguments, 1).introduction);
}

}  // namespace

EmbeddedRun train_embedded(const std::vector<std::string>& args, const EmbeddedOptions& embedded) {
  CommandLine line = parse_command_line(args);
  check_places(line);
  // A signal during start-up is kept for the first step, because the process belongs to the caller.
  const StopRequest stop(StopRequest::Phase::ready, line.arguments.saving.exit_signal_grace);
  use_platform(line.arguments.job.platform);
  if (embedded.use_model) {
    embedded.use_model(&line.arguments);
  } else if (is_first_run(line) && read_job_environment().source == JobSource::single) {
    begin_first_run(&line);
  }
  use_cached_models(&line.arguments, &line.notes);
  RunOptions options{.callbacks = embedded.callbacks, .notes = line.notes, .loop = embedded.loop};
  if (!line.config.empty()) options.inputs = {line.config};
  Providers providers;
  providers.compute_metrics = embedded.compute_metrics;
  providers.model = embedded.model;
  providers.multipliers = embedded.multipliers;
  if (embedded.forward_step) providers.forward_step = embedded.forward_step(line.arguments);
  try {
    return {run_training(line.arguments, providers, options), line.arguments.output.dir};
  } catch (...) {
    if (is_initialized() && parallel_context().world() == 1) finalize();
    throw;
  }
}

}  // namespace concord
