#include "trainer/cli/plans/plan_memory.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/arguments/arguments.h"
#include "trainer/arguments/hub_names.h"
#include "trainer/planning/memory_fit.h"
#include "trainer/planning/plan_data.h"

namespace concord {
namespace {

constexpr const char* kUsage = R"(concord plan memory [OPTIONS] [--config FILE.yaml] [--name value ...]
  prints the memory of a run with these arguments of `concord train`: for every class of tensor its type, place, bytes
  and when it moves, and the predicted peak of device and host. Reads no data and needs no device.

  concord plan memory --model_config config.json --bf16 --seq_length 4096 --per_device_train_batch_size 1

  --world_size N    number of ranks; default: nproc, or 1
  --rank R          this rank; default: the one with the highest peak
  --fits GIB,...    for devices of these sizes, the cheapest changes of the arguments with which the run fits
  --host_memory GIB with --fits, what changes may use of the host; default: no limit
  --json            one JSON document on standard output
Rows have seq_length tokens, or else cutoff_len, or else as many as the model allows.
)";

// Options of the command, which precede or follow the arguments of train.
struct Options {
  std::optional<std::string> world, rank, fits, host_memory;
  bool help = false;
  std::vector<std::string> rest;
};

Options options_of(const std::vector<std::string>& args) {
  Options options;
  const std::pair<const char*, std::optional<std::string>*> known[] = {{"--world_size", &options.world},
                                                                       {"--rank", &options.rank},
                                                                       {"--fits", &options.fits},
                                                                       {"--host_memory", &options.host_memory}};
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = args[i].find('=');
    const std::string name = args[i].substr(0, equals);
    const auto found = std::ranges::find_if(known, [&](const auto& each) { return name == each.first; });
    if (name == "--help" || name == "-h") options.help = true;
    if (found == std::end(known)) {
      options.rest.push_back(args[i]);
    } else if (equals != std::string::npos) {
      *found->second = args[i].substr(equals + 1);
    } else if (i + 1 < args.size()) {
      *found->second = args[++i];
    } else {
      throw ConfigError(fmt::format("{} needs a value", name));
    }
  }
  return options;
}

int64_t integer(const char* name, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return value;
  throw ConfigError(fmt::format("{} is {}; must be an integer from {} to {}", name, quoted(text), least, most));
}

// A size in GiB.
int64_t bytes_of(const char* name, const std::string& text) {
  constexpr double kGiB = 1 << 30, kMaxGib = 1e6;
  char* end = nullptr;
  const double gib = std::strtod(text.c_str(), &end);
  if (!text.empty() && *end == '\0' && gib > 0 && gib <= kMaxGib) return static_cast<int64_t>(gib * kGiB);
  throw ConfigError(fmt::format("{} has {}; must be a number of GiB > 0 and <= {:g}", name, quoted(text), kMaxGib));
}

// A line for each of the device sizes in |options|.fits.
std::string fits_text(const Options& options, const TrainingArguments& arguments, int64_t world) {
  constexpr double kGiB = 1 << 30;
  AvailableMemory available;
  if (options.host_memory) available.host = bytes_of("--host_memory", *options.host_memory);
  std::string text = fmt::format("{:>8} {:>9} {:>9}  {}\n", "GiB", "peak", "host", "arguments to change");
  for (const std::string& size : between_commas("--fits", *options.fits)) {
    available.device = bytes_of("--fits", size);
    const auto fit = cheapest_fit(arguments, world, available);
    if (!fit) {
      text += fmt::format("{:>8} {:>9} {:>9}  does not fit\n", size, "", "");
      continue;
    }
    text +=
        fmt::format("{:>8} {:>9.2f} {:>9.2f}  {}\n", size, static_cast<double>(fit->memory.peak(Place::device)) / kGiB,
                    static_cast<double>(fit->memory.peak(Place::host)) / kGiB,
                    fit->changes.empty() ? "none" : to_text(fit->changes));
  }
  return text;
}

int64_t world_of(const Options& options, const LaunchArguments& launch) {
  constexpr int64_t kMaxWorld = int64_t{1} << 40;
  if (options.world) return integer("--world_size", *options.world, 1, kMaxWorld);
  return std::max<int64_t>(1, launch.nproc) * launch.nnodes;
}

// The arguments of the run, with the folder of a model that is a name of the hub.
TrainingArguments arguments_of(const CommandLine& line, int64_t world) {
  TrainingArguments arguments = line.arguments;
  if (arguments.model.path.empty() && arguments.model.config.empty()) {
    throw ConfigError("the plan of memory needs a model; give --model FOLDER or --model_config FILE");
  }
  std::vector<std::string> notes;
  use_cached_models(&arguments, &notes);
  return resolve_arguments(std::move(arguments), world);
}

}  // namespace

std::string plan_memory_text(const std::vector<std::string>& args) {
  const Options options = options_of(args);
  if (options.help) return kUsage;
  const CommandLine line = parse_command_line(options.rest);
  const int64_t world = world_of(options, line.arguments.launch);
  const TrainingArguments arguments = arguments_of(line, world);
  if (options.fits) return fits_text(options, arguments, world);
  const TrainingPlan plan = plan_model(arguments);
  const RankLayout layout = layout_of(initialize_args(plan), world);
  const MicroBatchShape batch = micro_batch_shape(plan);
  RankMemory memory;
  if (options.rank) {
    memory.rank = integer("--rank", *options.rank, 0, world - 1);
    memory.memory = plan_memory(plan, layout, memory.rank, batch);
  } else {
    memory = largest_memory_plan(plan, layout, batch);
  }
  if (line.json) return to_json(memory.memory) + "\n";
  return fmt::format("rank {} of {}: {}, micro-batches of {} x {} tokens\n\n{}", memory.rank, world,
                     plan.config.architecture, batch.rows, batch.tokens, to_text(memory.memory));
}

void add_plan_memory_command(CLI::App* plan) {
  CLI::App* app = plan->add_subcommand("memory", "print the memory of a training run, by class of tensor");
  app->set_help_flag();
  app->prefix_command(true);  // the remaining arguments are those of train
  app->callback([app] { std::fputs(plan_memory_text(app->remaining()).c_str(), stdout); });
}

}  // namespace concord
