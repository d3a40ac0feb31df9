#include "trainer/cli/plans/schedule.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/files/output_check.h"
#include "core/base/quoted.h"
#include "core/schedule/check.h"
#include "core/schedule/draw.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedule_csv.h"
#include "trainer/cli/setting_options.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

ordered_json texts_json(const Schedule& schedule) {
  ordered_json ranks = ordered_json::array();
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::vector<std::string> texts;
    for (const Action& action : actions) {
      if (action.joined)
        texts.back().append(1, '+').append(to_string(action));
      else
        texts.push_back(to_string(action));
    }
    ranks.push_back(std::move(texts));
  }
  return ranks;
}

double largest_memory(const PricedSchedule& priced) {
  const std::vector<int64_t>& peaks = priced.simulation.peak_activations;
  return static_cast<double>(*std::max_element(peaks.begin(), peaks.end())) / priced.complete.vpp;
}

ordered_json numbers_json(const PricedSchedule& priced) {
  const Schedule& schedule = priced.complete;
  const Simulation& simulation = priced.simulation;
  std::vector<double> memory;
  for (const int64_t peak : simulation.peak_activations) memory.push_back(static_cast<double>(peak) / schedule.vpp);
  return {{"kind", schedule.kind},
          {"pp", schedule.pp},
          {"vpp", schedule.vpp},
          {"microbatches", schedule.microbatches},
          {"bubble_ratio", simulation.bubble_ratio},
          {"device_idle_ratio", simulation.device_idle_ratio},
          {"makespan", simulation.makespan},
          {"peak_activations", simulation.peak_activations},
          {"activation_memory", memory}};
}

std::string counted(int count, const std::string& what) {
  if (count == 1) return "1 " + what;
  return fmt::format("{} {}{}", count, what, what.ends_with("ch") ? "es" : "s");
}

std::string list_of(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += fmt::format(" {}", value);
  return text;
}

// Without transfers and reductions, which complete_schedule adds.
Schedule only_computations(const Schedule& schedule) {
  Schedule computations = schedule;
  for (std::vector<Action>& actions : computations.ranks) {
    std::erase_if(actions, [](const Action& action) { return !is_compute(action.kind); });
  }
  return computations;
}

void write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  replace_file(path, text);
}

struct ScheduleOptions {
  TrainingArguments settings;
  ScheduleRequest request;
  ScheduleCosts costs;
  std::string csv;       // to read
  std::string save_csv;  // to write
  std::string svg;
  std::string placement;
  int64_t max_activations = 0;
  int64_t width = 120;
  bool transfers = false;
  bool compare = false;
  bool overwrite = false;
  bool json = false;
};

void check_schedule_options(const ScheduleOptions& given, bool sized) {
  if (!given.csv.empty() && (sized || given.compare)) {
    throw ConfigError(fmt::format(
        "{} defines its own ranks, chunks and micro-batches; remove --pp, --vpp, --microbatches and --compare",
        given.csv));
  }
  if (given.csv.empty() && given.request.microbatches == 0)
    throw ConfigError("--microbatches is required: the number of micro-batches per step");
  if (given.csv.empty() && given.request.pp == 0) throw ConfigError("--pp is required: the number of pipeline ranks");
  if (given.csv.empty() && given.max_activations != 0)
    throw ConfigError("--max_activations only applies to a schedule from a file; the kinds have their own limits");
  if (given.width < 0) throw ConfigError(fmt::format("--width is {}; must be >= 1, or 0 for unlimited", given.width));
  if (given.json && (given.save_csv == "-" || given.svg == "-"))
    throw ConfigError("--json and another document cannot both use standard output; write one to a file");
  if (given.compare && !given.save_csv.empty())
    throw ConfigError("--save_csv writes a single schedule; remove --compare");
  const OutputRules rules{.overwrite = given.overwrite, .inputs = {given.csv}};
  check_output_files({{"--save_csv", given.save_csv}, {"--svg", given.svg}}, rules);
}

Placement parse_placement(const std::string& name) {
  if (name == "v") return Placement::v;
  if (name == "loop") return Placement::loop;
  throw ConfigError(fmt::format("unknown placement {}; must be loop or v", quoted(name)));
}

void run_compare(const ScheduleOptions& given) {
  const std::vector<ComparedKind> kinds = compare_kinds(given.request, given.costs);
  if (!given.svg.empty()) {
    std::vector<Panel> panels;
    for (const ComparedKind& kind : kinds) {
      if (kind.refusal.empty()) panels.push_back({&kind.priced.complete, &kind.priced.simulation});
    }
    write_file(given.svg, draw_svg(panels));
  }
  if (given.svg == "-") return;
  std::fputs((given.json ? compare_json(given.request, kinds) + "\n" : compare_text(given.request, kinds)).c_str(),
             stdout);
}

void run_one(const ScheduleOptions& given) {
  const Schedule schedule =
      given.csv.empty() ? make_schedule(given.request) : load_schedule_csv(given.csv, given.max_activations);
  const PricedSchedule priced = price_schedule(schedule, given.costs);
  if (!given.svg.empty()) write_file(given.svg, draw_svg({{&priced.complete, &priced.simulation}}));
  if (!given.save_csv.empty())
    write_file(given.save_csv, schedule_csv(given.transfers ? priced.complete : priced.computations));
  if (given.svg == "-" || given.save_csv == "-") return;
  std::fputs(
      (given.json ? schedule_json(priced) + "\n" : schedule_text(priced, static_cast<size_t>(given.width))).c_str(),
      stdout);
}

}  // namespace

PricedSchedule price_schedule(const Schedule& schedule, const ScheduleCosts& costs) {
  PricedSchedule priced;
  priced.computations = only_computations(schedule);
  check_schedule(schedule);
  priced.complete = complete_schedule(has_transfers(schedule) ? schedule : priced.computations);
  check_schedule(priced.complete);
  priced.simulation = simulate(priced.complete, costs);
  return priced;
}

std::string schedule_json(const PricedSchedule& priced) {
  ordered_json document = numbers_json(priced);
  document["actions"] = texts_json(priced.computations);
  document["program"] = texts_json(priced.complete);
  return document.dump();
}

std::string schedule_text(const PricedSchedule& priced, size_t width) {
  const Schedule& schedule = priced.complete;
  const Simulation& simulation = priced.simulation;
  std::string text = fmt::format("{}: {} x {}, {}\n", schedule.kind, counted(schedule.pp, "rank"),
                                 counted(schedule.vpp, "chunk"), counted(schedule.microbatches, "micro-batch"));
  text += fmt::format("makespan {:g}, bubble {:.2f} %, idle time between a rank's first and last action {:.2f} %\n",
                      simulation.makespan, 100 * simulation.bubble_ratio, 100 * simulation.device_idle_ratio);
  text += fmt::format(
      "peak activations per rank:{}{}\n\n", list_of(simulation.peak_activations),
      schedule.vpp == 1 ? "" : fmt::format("  (of one chunk; {:g} of all layers of a rank)", largest_memory(priced)));
  return text + draw_grid(schedule, simulation, width);
}

std::vector<ComparedKind> compare_kinds(const ScheduleRequest& request, const ScheduleCosts& costs) {
  std::vector<ComparedKind> compared;
  for (const std::string_view kind : schedule_kinds()) {
    ComparedKind entry;
    entry.kind = kind;
    ScheduleRequest wanted = request;
    wanted.kind = kind;
    if (kind != "interleaved") wanted.vpp = wanted.microbatch_group_size = 0;  // only interleaved takes these
    try {
      const Schedule schedule = make_schedule(wanted);
      const double share = schedule.vpp;
      entry.priced =
          price_schedule(schedule, {costs.forward / share, costs.backward / share, costs.weight / share, costs.comm});
    } catch (const ConfigError& error) {
      entry.refusal = error.what();
    }
    compared.push_back(std::move(entry));
  }
  return compared;
}

std::string compare_json(const ScheduleRequest& request, const std::vector<ComparedKind>& kinds) {
  ordered_json document = {
      {"pp", request.pp}, {"microbatches", request.microbatches}, {"schedules", ordered_json::array()}};
  for (const ComparedKind& kind : kinds) {
    if (kind.refusal.empty())
      document["schedules"].push_back(numbers_json(kind.priced));
    else
      document["schedules"].push_back({{"kind", kind.kind}, {"refusal", kind.refusal}});
  }
  return document.dump();
}

std::string compare_text(const ScheduleRequest& request, const std::vector<ComparedKind>& kinds) {
  std::string text = fmt::format(
      "{} ranks, {} micro-batches; costs are per rank for all of its layers, memory is in micro-batches through all of "
      "its layers\n\n",
      request.pp, request.microbatches);
  text += fmt::format("{:<14}{:>7}{:>11}{:>10}{:>15}{:>9}\n", "kind", "chunks", "makespan", "bubble", "idle in rank",
                      "memory");
  for (const ComparedKind& kind : kinds) {
    if (!kind.refusal.empty()) {
      text += fmt::format("{:<14}{}\n", kind.kind, kind.refusal);
      continue;
    }
    const Simulation& simulation = kind.priced.simulation;
    text += fmt::format("{:<14}{:>7}{:>11.4g}{:>8.2f} %{:>13.2f} %{:>9g}\n", kind.kind, kind.priced.complete.vpp,
                        simulation.makespan, 100 * simulation.bubble_ratio, 100 * simulation.device_idle_ratio,
                        largest_memory(kind.priced));
  }
  return text;
}

void add_schedule_command(CLI::App* program) {
  const auto given = std::make_shared<ScheduleOptions>();
  TrainingArguments* settings = &given->settings;
  settings->pipeline.schedule = "1f1b";
  ScheduleRequest& request = given->request;
  request.pp = request.microbatches = 0;
  CLI::App* schedule = program->add_subcommand("schedule", "print, cost and draw a pipeline schedule");
  add_setting(schedule,
              {.name = "pipeline_schedule",
               .help = "gpipe, 1f1b, interleaved, zb-h1, zb-v, forward-only, or a file NAME.csv",
               .spellings = "--kind"},
              settings);
  CLI::Option* pp = add_setting(schedule,
                                {.name = "pipeline_model_parallel_size",
                                 .help = "number of pipeline ranks",
                                 .spellings = "--pp,--pipeline_model_parallel_size",
                                 .shows_default = false},
                                settings);
  CLI::Option* microbatches = schedule->add_option("--microbatches", request.microbatches, "micro-batches per step");
  CLI::Option* vpp = add_setting(schedule,
                                 {.name = "virtual_pipeline_model_parallel_size",
                                  .help = "model chunks per rank; default: that of the kind",
                                  .spellings = "--vpp,--virtual_pipeline_model_parallel_size",
                                  .shows_default = false},
                                 settings);
  schedule->add_option("--microbatch_group_size_per_vp_stage", request.microbatch_group_size,
                       "for interleaved: micro-batches per chunk before switching to the next; default: pp");
  schedule->add_option("--placement", given->placement, "for forward-only: loop or v");
  schedule->add_option("--cost_f", given->costs.forward, "time of a forward pass")->capture_default_str();
  schedule->add_option("--cost_b", given->costs.backward, "time of the input gradient")->capture_default_str();
  schedule
      ->add_option("--cost_w", given->costs.weight,
                   "time of the weight gradient; a backward pass that is not split takes b + w")
      ->capture_default_str();
  schedule->add_option("--cost_comm", given->costs.comm, "time of a transfer between two ranks")->capture_default_str();
  schedule->add_option("--csv", given->csv,
                       "read the schedule from this file and check it: one line per rank, e.g. 0F0,0F1,0B0");
  schedule->add_option("--max_activations", given->max_activations, "reject a file whose ranks hold more; 0: unlimited")
      ->capture_default_str();
  schedule->add_option("--save_csv", given->save_csv, "write the schedule to this file; - is standard output");
  schedule->add_flag("--transfers", given->transfers, "include sends, receives and reductions in --save_csv");
  schedule->add_option("--svg", given->svg, "write a drawing to this file; - is standard output");
  schedule->add_flag("--overwrite", given->overwrite, "replace existing files");
  schedule->add_option("--width", given->width, "characters per line of the grid; 0: unlimited")->capture_default_str();
  schedule->add_flag("--compare", given->compare, "compare all kinds");
  schedule->add_flag("--json", given->json, "one JSON document on standard output");
  schedule->callback([given, pp, microbatches, vpp] {
    given->request.kind = given->settings.pipeline.schedule;
    if (pp->count() > 0) given->request.pp = given->settings.job.pipeline_model_parallel_size;
    if (vpp->count() > 0) given->request.vpp = given->settings.job.virtual_pipeline_model_parallel_size;
    if (given->csv.empty() && given->request.kind.ends_with(".csv")) given->csv = given->request.kind;
    if (!given->placement.empty()) given->request.placement = parse_placement(given->placement);
    check_schedule_options(*given, pp->count() + microbatches->count() + vpp->count() > 0);
    if (given->compare)
      run_compare(*given);
    else
      run_one(*given);
  });
}

}  // namespace concord
