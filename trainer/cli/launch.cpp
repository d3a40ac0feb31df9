#include "trainer/cli/launch.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "core/launch/launcher.h"

namespace concord {
namespace {

constexpr const char* kLaunchFooter =
    R"(After -- comes one of this program's subcommands, or any program by path or from PATH:
  concord launch --nproc 4 -- platforms
  concord launch --nproc 4 -- ./a.out --its_own_option
  concord launch --nproc 8 --nnodes 2 --node_rank 1 --master_addr node0 -- ./a.out   (on each machine)

The processes see torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and the rest).
Ctrl-C, SIGTERM and SIGHUP are passed on to them, a second one kills them. When one fails, the others are ended and its
error is shown first.
Exit codes: 0 all processes ended with 0; 1 one did not; 2 wrong usage; 128 + signal: stopped by it.)";

struct LaunchArguments {
  LaunchOptions options;
  bool no_prefix = false;
  std::vector<std::string> command;
};

// A word that is a subcommand runs this same program.
std::vector<std::string> resolve(const CLI::App& program, std::vector<std::string> command) {
  const auto is_named = [&](const CLI::App* app) { return !command.empty() && app->check_name(command.front()); };
  if (program.get_subcommands(is_named).empty()) return command;
  command.insert(command.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  return command;
}

}  // namespace

void add_launch_command(CLI::App* program, int* exit_code) {
  const auto arguments = std::make_shared<LaunchArguments>();
  LaunchOptions& options = arguments->options;
  CLI::App* launch_app =
      program->add_subcommand("launch", "starts the processes of a job on this machine, as torchrun does");
  launch_app->footer(kLaunchFooter);
  launch_app->add_option("--nproc,--nproc_per_node", options.nproc, "processes on this machine")->required();
  launch_app->add_option("--nnodes", options.nnodes, "machines of the job")->capture_default_str();
  launch_app->add_option("--node_rank", options.node_rank, "which of the machines this is, from 0")
      ->capture_default_str();
  launch_app->add_option("--master_addr", options.master_addr, "address of machine 0 (one machine: 127.0.0.1)");
  launch_app->add_option("--master_port", options.master_port,
                         "port on machine 0 (one machine: any free one; several: 29500)");
  launch_app
      ->add_option("--max_restarts", options.max_restarts, "after a failure start all processes again, so many times")
      ->capture_default_str();
  launch_app->add_option("--grace", options.grace_seconds, "seconds between SIGTERM and SIGKILL when a job is ended")
      ->capture_default_str();
  launch_app->add_option("--log_dir", options.log_dir, "write rank-N.log there, one a rank, instead of here");
  launch_app->add_flag("--no_prefix", arguments->no_prefix, "no \"[rank N] \" in front of the lines");
  launch_app->add_option("command", arguments->command, "what each process runs, after --");
  launch_app->callback([program, arguments, exit_code] {
    arguments->options.prefix = !arguments->no_prefix;
    *exit_code = launch(arguments->options, resolve(*program, arguments->command));
  });
}

}  // namespace concord
