#include "trainer/cli/conform/platform_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/config_error.h"
#include "core/base/files/output_check.h"
#include "core/base/quoted.h"
#include "trainer/cli/conform/golden_run.h"
#include "trainer/cli/conform/zip_file.h"
#include "trainer/cli/program_version.h"
#include "trainer/report/files.h"

extern char** environ;

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class ScratchFolder {
 public:
  ScratchFolder() : path_((fs::temp_directory_path() / "concord-report-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error(fmt::format("cannot create a folder {}: {}", path_, std::strerror(errno)));
    }
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  fs::path operator/(const std::string& name) const { return fs::path(path_) / name; }

 private:
  std::string path_;
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Runs |command| to its end, with its standard output in |out| and its standard error in |err|, which may be the same.
// Returns its exit code, 128 + signal if one ended it.
int run_to_files(const std::vector<std::string>& command, const std::string& out, const std::string& err) {
  std::vector<char*> args;
  for (const std::string& each : command) args.push_back(const_cast<char*>(each.c_str()));
  args.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  pid_t child = -1;
  const int error = ::posix_spawn(&child, command.front().c_str(), &actions, nullptr, args.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    std::ofstream(err, std::ios::app) << "cannot start " << command.front() << ": " << std::strerror(error) << "\n";
    return 127;
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs the parts and collects their files.
class Report {
 public:
  explicit Report(const PlatformReportOptions& options) : options_(options) {
    program_ = fs::read_symlink("/proc/self/exe");
    if (!options.platform.empty()) ::setenv("CONCORD_PLATFORM", options.platform.c_str(), 1);
  }

  int write() {
    run_surveys();
    run_kit();
#ifdef CONCORD_WITH_TORCH
    run_operators();
    run_training();
#else
    for (const char* const part : {"operators", "training"}) skip(part, "this program was built without libtorch");
#endif
    archive_.add("summary.json", summary().dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
    replace_file(options_.file, archive_.archive());
    fmt::print("\n{} in {}\n", has_failed_ ? "not everything passed; all results are" : "all passed; all results are",
               options_.file);
    return has_failed_ ? 1 : 0;
  }

 private:
  void skip(const std::string& name, const std::string& reason) {
    parts_.push_back({{"part", name}, {"verdict", "skipped"}, {"reason", reason}});
    fmt::print("skip  {}: {}\n", name, reason);
  }

  // |prints_result|: standard output is the file NAME.json. An |informative| part does not fail the report.
  int run(const std::string& name, const std::vector<std::string>& command, bool prints_result, bool informative) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string log = (scratch_ / (name + ".txt")).string();
    const std::string out = prints_result ? (scratch_ / (name + ".json")).string() : log;
    const int exit_code = run_to_files(command, out, log);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    has_failed_ |= exit_code != 0 && !informative;
    parts_.push_back({{"part", name},
                      {"command", shell_command({command.begin() + 1, command.end()})},
                      {"exit_code", exit_code},
                      {"seconds", seconds},
                      {"verdict", exit_code == 0 ? "pass"
                                  : informative  ? "note"
                                                 : "fail"}});
    fmt::print("{}  {:<12} {:>7.1f} s\n", exit_code == 0 ? "pass" : informative ? "note" : "FAIL", name, seconds);
    std::fflush(stdout);
    if (prints_result) add_if_there(name + ".json", scratch_ / (name + ".json"));
    add_if_there("logs/" + name + ".txt", log);
    return exit_code;
  }

  void add_if_there(const std::string& name, const fs::path& path) {
    std::error_code error;
    if (fs::file_size(path, error) > 0 && !error) archive_.add(name, content_of(path));
  }

  std::vector<std::string> concord(const std::vector<std::string>& args) const {
    std::vector<std::string> command = {program_.string()};
    command.insert(command.end(), args.begin(), args.end());
    return command;
  }

  void run_surveys() {
    run("platforms", concord({"platforms", "--json"}), true, /*informative=*/false);
    auto survey = ordered_json::parse(content_of(scratch_ / "platforms.json"), nullptr, /*allow_exceptions=*/false);
    if (survey.is_object() && survey["chosen"].is_object()) chosen_ = survey["chosen"].value("name", "");
    run("doctor", concord({"doctor", "--json"}), true, /*informative=*/true);
    if (!chosen_.empty()) {
      run("doctor_" + chosen_, concord({"doctor", "--json", "--platform", chosen_}), true, /*informative=*/true);
    }
  }

  void run_kit() {
    const std::string file = (scratch_ / "conformance.json").string();
    std::vector<std::string> command = {(program_.parent_path() / "concord-conform").string()};
    if (!options_.platform.empty()) command.insert(command.end(), {"--platform", options_.platform});
    command.insert(command.end(), options_.kit.begin(), options_.kit.end());
    command.insert(command.end(), {"--report", file});
    run("conformance", command, false, /*informative=*/false);
    add_if_there("conformance.json", file);
  }

  void run_operators() {
    const std::string file = (scratch_ / "operators.json").string();
    std::vector<std::string> command = concord({"operators", "--out", file});
    if (options_.quick) command.emplace_back("--quick");
    run("operators", command, false, /*informative=*/false);
    add_if_there("operators.json", file);
  }

  void run_training() {
    const std::optional<GoldenRun> golden = GoldenRun::find(program_);
    if (!golden) return skip("training", "the golden trajectory is not installed: " + GoldenRun::places(program_));
    const std::string folder = (scratch_ / "training").string();
    const std::string config = golden->write_input(folder);
    const int exit_code = run("training", concord({"train", "--config", config}), false, /*informative=*/false);
    add_if_there("timeline/rank_0.json", fs::path(folder) / "out/profile/rank_0.json");
    if (exit_code != 0) return;
    const ordered_json trajectory = golden->compare(folder);
    archive_.add("trajectory.json", trajectory.dump(1) + "\n");
    const bool is_equal = trajectory["verdict"] == "pass";
    has_failed_ |= !is_equal;
    parts_.push_back({{"part", "trajectory"}, {"verdict", trajectory["verdict"]}});
    fmt::print("{}  {:<12} largest difference {:.3g} of {:.3g} allowed\n", is_equal ? "pass" : "FAIL", "trajectory",
               trajectory["largest_loss_difference"].get<double>(), trajectory["loss_bound"].get<double>());
  }

  // Without the machine's name.
  static ordered_json machine() {
    utsname name{};
    ::uname(&name);
    std::string system;
    std::ifstream release("/etc/os-release");
    for (std::string line; std::getline(release, line);) {
      if (line.starts_with("PRETTY_NAME=")) system = line.substr(line.find('=') + 1);
    }
    return {{"kernel", name.release}, {"architecture", name.machine}, {"system", system}};
  }

  ordered_json summary() const {
    ordered_json settings = ordered_json::object();
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string text = *each;
      const size_t equals = text.find('=');
      if (text.starts_with("CONCORD_") || text.starts_with("LD_LIBRARY_PATH=")) {
        settings[text.substr(0, equals)] = text.substr(equals + 1);
      }
    }
    return {{"concord", program_version()},       {"platform", chosen_}, {"machine", machine()},
            {"environment", std::move(settings)}, {"parts", parts_},     {"verdict", has_failed_ ? "fail" : "pass"}};
  }

  const PlatformReportOptions& options_;
  const ScratchFolder scratch_;
  fs::path program_;
  std::string chosen_;  // name of the platform
  ZipFile archive_;
  ordered_json parts_ = ordered_json::array();
  bool has_failed_ = false;
};

}  // namespace

int write_platform_report(const PlatformReportOptions& options) {
  check_output_file("--report", options.file, {.overwrite = options.overwrite, .inputs = {options.platform}});
  return Report(options).write();
}

}  // namespace concord
