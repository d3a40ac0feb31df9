#include "trainer/cli/plans/plan.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/files/hub_cache.h"
#include "core/mesh/platform_map.h"
#include "trainer/arguments/arguments.h"
#include "trainer/cli/plans/plan_buckets.h"
#include "trainer/cli/plans/plan_memory.h"
#include "trainer/cli/setting_options.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kDrawnWorld = 256;  // the grid is unreadable with more ranks than this
constexpr int64_t kShownGroups = 8;   // groups of a kind that the table lists before it prints how many more there are

ordered_json group_json(const RankGroup& group) {
  if (group.size() <= kListedGroup) return group.members();
  ordered_json axes = ordered_json::array();
  for (const RankGroup::Axis& axis : group.axes()) axes.push_back({{"count", axis.count}, {"stride", axis.stride}});
  return {{"size", group.size()}, {"first", group.first()}, {"axes", axes}};
}

ordered_json all_groups_json(const RankLayout& layout, GroupKind kind) {
  ordered_json groups = ordered_json::array();
  for (int64_t i = 0; i < layout.group_count(kind); ++i) groups.push_back(layout.group(kind, i).members());
  return groups;
}

// One cell of the grid: the ranks at one (dp, pp) position, tp along the line, one line per cp.
std::string cell_line(const RankLayout& layout, int64_t cp, int64_t dp, int64_t pp, size_t width) {
  std::string line;
  for (int64_t tp = 0; tp < layout.tp(); ++tp) line += fmt::format(" {:>{}}", layout.rank_at(tp, cp, dp, pp), width);
  return line;
}

std::string grid(const RankLayout& layout) {
  const size_t width = std::to_string(layout.world() - 1).size();
  const size_t cell = static_cast<size_t>(layout.tp()) * (width + 1);
  const size_t label = std::to_string(std::max(layout.pp(), layout.dp())).size();
  std::string text = fmt::format("      {:{}}", "", label);
  for (int64_t dp = 0; dp < layout.dp(); ++dp) text += fmt::format(" | {:<{}}", fmt::format("dp {}", dp), cell);
  text += "\n";
  for (int64_t pp = 0; pp < layout.pp(); ++pp) {
    for (int64_t cp = 0; cp < layout.cp(); ++cp) {
      text += cp == 0 ? fmt::format("   pp {:<{}}", pp, label) : fmt::format("      {:{}}", "", label);
      for (int64_t dp = 0; dp < layout.dp(); ++dp)
        text += fmt::format(" | {:<{}}", cell_line(layout, cp, dp, pp, width), cell);
      text += "\n";
    }
  }
  return text;
}

std::string summary(const RankLayout& layout) {
  return fmt::format(
      "world {} = tp {} x cp {} x dp {} x pp {}    (expert layers: etp {} x ep {} x edp {} x pp {})\norder {}, first "
      "varies fastest{}\n",
      layout.world(), layout.tp(), layout.cp(), layout.dp(), layout.pp(), layout.etp(), layout.ep(), layout.edp(),
      layout.pp(), layout.order(), layout.vpp() > 1 ? fmt::format("; {} model chunks per rank", layout.vpp()) : "");
}

std::string kind_line(const RankLayout& layout, GroupKind kind) {
  const int64_t count = layout.group_count(kind);
  std::string text = fmt::format("  {:<19} {:>8} x {:<8}", to_string(kind), count, layout.group(kind, 0).size());
  for (int64_t i = 0; i < std::min(count, kShownGroups); ++i)
    text += fmt::format(" [{}]", layout.group(kind, i).to_string());
  if (count > kShownGroups) text += fmt::format(" ... and {} more", count - kShownGroups);
  return text + "\n";
}

std::string rank_line(const RankLayout& layout, GroupKind kind, int64_t rank) {
  const std::optional<RankGroup> group = layout.group_of(kind, rank);
  if (!group) return fmt::format("  {:<19} not a member\n", to_string(kind));
  return fmt::format("  {:<19} {:>13}  index {:<13} [{}]\n", to_string(kind), group->size(), *group->index_of(rank),
                     group->to_string());
}

}  // namespace

std::string plan_json(const RankLayout& layout, std::optional<int64_t> rank) {
  if (!rank && layout.world() > kListedWorld) {
    throw ConfigError(fmt::format("cannot list the groups of {} ranks (at most {}); select one rank with --rank R",
                                  layout.world(), kListedWorld));
  }
  ordered_json document = {{"world_size", layout.world()},
                           {"dims",
                            {{"tp", layout.tp()},
                             {"cp", layout.cp()},
                             {"dp", layout.dp()},
                             {"pp", layout.pp()},
                             {"ep", layout.ep()},
                             {"etp", layout.etp()},
                             {"edp", layout.edp()}}},
                           {"order", layout.order()}};
  if (rank) document["rank"] = *rank;
  ordered_json& groups = document["groups"];
  for (const GroupKind kind : all_group_kinds()) {
    const std::string name(to_string(kind));
    if (!rank) {
      groups[name] = all_groups_json(layout, kind);
    } else if (const auto group = layout.group_of(kind, *rank)) {
      groups[name] = group_json(*group);
    } else {
      groups[name] = nullptr;
    }
  }
  return document.dump();
}

std::string plan_text(const RankLayout& layout, std::optional<int64_t> rank) {
  std::string text = summary(layout) + "\n";
  if (rank) {
    const RankCoordinates at = layout.coordinates(*rank);
    text += fmt::format("rank {}: tp {}, cp {}, dp {}, pp {}; in expert layers etp {}, ep {}, edp {}\n\n", *rank, at.tp,
                        at.cp, at.dp, at.pp, at.etp, at.ep, at.edp);
    text += "  group                        size\n";
    for (const GroupKind kind : all_group_kinds()) text += rank_line(layout, kind, *rank);
    return text;
  }
  if (layout.world() <= kDrawnWorld) text += grid(layout) + "\n";
  text += "  group                 groups x size\n";
  for (const GroupKind kind : all_group_kinds()) text += kind_line(layout, kind);
  return text;
}

namespace {

void add_bucket_options(CLI::App* plan, BucketArguments* buckets, TrainingArguments* settings) {
  CLI::Option* wanted = plan->add_flag(
      "--buckets", buckets->wanted, "print the flat buffers, buckets and memory of a rank (--rank, default 0) instead");
  const auto with_buckets = [wanted](CLI::Option* option) { option->needs(wanted)->group("With --buckets"); };
  with_buckets(add_setting(
      plan,
      {.name = "model", .help = "a folder with config.json, or the file itself", .spellings = "--model,--model_config"},
      settings));
  with_buckets(plan->add_option("--parameters", buckets->parameters, "a JSON list of {name, shape, dtype, expert}"));
  with_buckets(plan->add_option("--dtype", buckets->dtype,
                                "dtype of the parameters: f32, bf16 or f16; default: from config.json"));
  with_buckets(add_setting(plan, {.name = "use_distributed_optimizer"}, settings));
  with_buckets(add_setting(plan, {.name = "sequence_parallel"}, settings));
  with_buckets(plan->add_flag("--grads_in_parameter_type", buckets->grads_in_parameter_type,
                              "keep gradients in the parameter dtype instead of fp32"));
  with_buckets(add_setting(
      plan, {.name = "optimizer", .help = "the one whose state is counted; muon's as if it were adam's"}, settings));
  with_buckets(add_setting(plan, {.name = "exp_avg_dtype"}, settings));
  with_buckets(add_setting(plan, {.name = "exp_avg_sq_dtype"}, settings));
  with_buckets(add_setting(plan, {.name = "main_params_dtype"}, settings));
  with_buckets(add_setting(plan, {.name = "main_grads_dtype"}, settings));
  with_buckets(add_setting(plan, {.name = "adam_beta2"}, settings));
  with_buckets(
      add_setting(plan, {.name = "ema_decay", .help = "as for train; above 0: also count the EMA weights"}, settings));
  with_buckets(add_setting(plan, {.name = "ddp_bucket_size"}, settings));
}

void print_plan(const TrainingArguments& settings, int64_t world, std::optional<int64_t> rank, BucketArguments buckets,
                bool json) {
  const RankLayout layout = layout_of(settings.job, world);
  const PlatformMap platforms = PlatformMap::parse(settings.job.platform, world);
  if (!buckets.wanted) {
    std::fputs((json ? plan_json(layout, rank) + "\n" : plan_text(layout, rank)).c_str(), stdout);
    if (!json && !rank && platforms.is_mixed())
      fmt::print("\n  group               with platforms {}\n{}", settings.job.platform,
                 describe_platforms(layout, platforms));
    check_platforms(layout, platforms);
    return;
  }
  buckets.model_config =
      local_model(settings.model.path.empty() ? settings.model.config : settings.model.path, "--model");
  buckets.use_distributed_optimizer = settings.data_parallel.use_distributed_optimizer;
  buckets.sequence_parallel = settings.model_options.sequence_parallel;
  buckets.ddp_bucket_size = settings.data_parallel.ddp_bucket_size;
  buckets.optimizer = settings.optimizer;
  if (settings.precision.main_grads_dtype == MainGradsType::bf16) buckets.grads_in_parameter_type = true;
  std::fputs(buckets_text(buckets, layout, rank.value_or(0), json).c_str(), stdout);
}

}  // namespace

void add_plan_command(CLI::App* program) {
  struct Given {
    int64_t world = 0;
    TrainingArguments settings;
    std::optional<int64_t> rank;
    bool json = false;
    BucketArguments buckets;
  };
  const auto given = std::make_shared<Given>();
  CLI::App* plan =
      program->add_subcommand("plan", "print the groups of a layout, the buckets of a rank, or the memory of a run");
  // Before the others, which take precedence: options are taken in the order in which they are added.
  plan->add_option_function<std::string>(
          "--config",
          [given](const std::string& file) {
            given->settings = parse_command_line(std::vector<std::string>{"--config", file}).arguments;
          },
          "YAML or TOML file with settings of train")
      ->type_name("FILE");
  add_plan_memory_command(plan);
  plan->add_option("--world_size", given->world, "number of ranks, up to 2^40");
  add_settings(plan,
               {{.name = "tensor_model_parallel_size"},
                {.name = "pipeline_model_parallel_size"},
                {.name = "virtual_pipeline_model_parallel_size"},
                {.name = "context_parallel_size"},
                {.name = "expert_model_parallel_size"},
                {.name = "expert_tensor_parallel_size"},
                {.name = "platform", .help = "platforms of equal parts of the ranks: cuda,ascend"},
                {.name = "order"}},
               &given->settings);
  plan->add_option("--rank", given->rank, "print only the groups of this rank; works for any world size");
  plan->add_flag("--json", given->json, "one JSON document on standard output");
  add_bucket_options(plan, &given->buckets, &given->settings);
  plan->callback([given, plan] {
    if (plan->got_subcommand("memory")) return;
    if (plan->count("--world_size") == 0) throw CLI::RequiredError("--world_size");
    print_plan(given->settings, given->world, given->rank, given->buckets, given->json);
  });
}

}  // namespace concord
