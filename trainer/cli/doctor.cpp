#include "trainer/cli/doctor.h"

#include <fmt/core.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/bytes_text.h"
#include "core/base/quoted.h"
#include "platform/abi/doctor.h"
#include "platform/base/python_path.hpp"
#include "platform/loader/dynamic_library.h"
#include "platform/loader/search_path.h"
#include "trainer/cli/platforms.h"
#include "trainer/program_path.h"

namespace concord {
namespace {

using nlohmann::ordered_json;
using Kind = Finding::Kind;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;

// A line of /proc/meminfo, in bytes; -1 if it is missing.
int64_t meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kilobytes = 0;
    if (word == name + ":" && file >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

struct FolderSpace {
  int64_t total = 0;
  int64_t free = 0;
  bool writable = false;
};
FolderSpace space_in(const std::string& folder) {
  struct statvfs space{};
  if (statvfs(folder.c_str(), &space) != 0) return {};
  const auto block = static_cast<int64_t>(space.f_frsize);
  return {static_cast<int64_t>(space.f_blocks) * block, static_cast<int64_t>(space.f_bavail) * block,
          access(folder.c_str(), W_OK) == 0};
}

Finding judge_plugin(const loader::Candidate& candidate, const PlatformsReport& platforms) {
  const std::string topic = "plugin " + candidate.name;
  const bool is_chosen = platforms.choice && candidate.plugin == platforms.choice->plugin;
  const std::string devices = fmt::format("{} device{}", candidate.devices, candidate.devices == 1 ? "" : "s");
  if (is_chosen) return {Kind::fine, topic, devices + "; selected", ""};
  if (candidate.plugin == nullptr) return {Kind::note, topic, candidate.reason, "see `concord platforms` for details"};
  if (candidate.devices == 0) return {Kind::note, topic, "no device found", ""};
  return {Kind::fine, topic, devices, fmt::format("CONCORD_PLATFORM={} selects it", candidate.name)};
}

std::vector<Finding> examine_plugins() {
  const PlatformsReport platforms = survey_platforms();
  std::vector<Finding> findings;
  if (!platforms.choice) {
    findings.push_back({Kind::problem, "platform", platforms.no_choice,
                        "set CONCORD_PLUGIN_PATH to the folder of libconcord_cpu.so (build/lib in a source tree)"});
  }
  for (const loader::Candidate& candidate : platforms.survey.candidates) {
    findings.push_back(judge_plugin(candidate, platforms));
  }
  return findings;
}

void add_finding(void* findings, int32_t kind, const char* topic, const char* found, const char* advice) {
  const Kind judged = kind == CONCORD_FINDING_FINE   ? Kind::fine
                      : kind == CONCORD_FINDING_NOTE ? Kind::note
                                                     : Kind::problem;
  static_cast<std::vector<Finding>*>(findings)->push_back({judged, topic, found, advice});
}

int cores_allowed() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

Finding judge_open_files() {
  constexpr rlim_t kEnough = 1024;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found = limit.rlim_cur == RLIM_INFINITY ? "no limit" : fmt::format("limit {}", limit.rlim_cur);
  if (limit.rlim_cur >= kEnough) return {Kind::fine, "open files", found, ""};
  return {Kind::problem, "open files", found, "large jobs need more; run ulimit -n 65536"};
}

// No module or sitecustomize.py of the working folder is run.
bool imports(const std::string& python, const std::string& module) {
  const char* const path = std::getenv("PYTHONPATH");
  const std::string command = shell_command({"env", "PYTHONPATH=" + absolute_python_path(path != nullptr ? path : ""),
                                             python, "-c", "import sys; sys.path[:1] = []; import " + module});
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

constexpr const char* mark(Kind kind) { return kind == Kind::fine ? "ok  " : kind == Kind::note ? "note" : "BAD "; }

void print_text(const std::vector<Finding>& findings) {
  int problems = 0;
  for (const Finding& finding : findings) {
    fmt::print("{}  {:<16}  {}\n", mark(finding.kind), finding.topic, finding.found);
    if (!finding.advice.empty()) fmt::print("      {:<16}  -> {}\n", "", finding.advice);
    problems += finding.kind == Kind::problem ? 1 : 0;
  }
  fmt::print("\n{}\n", problems == 0 ? fmt::format("This machine can train: {} train", program_as_typed())
                                     : fmt::format("Problems to fix: {}", problems));
}

void print_json(const std::vector<Finding>& findings) {
  ordered_json list = ordered_json::array();
  for (const Finding& finding : findings) {
    const char* kind = finding.kind == Kind::fine ? "fine" : finding.kind == Kind::note ? "note" : "problem";
    list.push_back({{"kind", kind}, {"topic", finding.topic}, {"found", finding.found}, {"advice", finding.advice}});
  }
  const ordered_json document{{"findings", std::move(list)}};
  fmt::print("{}\n", document.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

}  // namespace

Finding judge_shared_memory(int64_t total_bytes, int64_t free_bytes, bool writable) {
  constexpr int64_t kEnough = 256 * kMiB;
  const bool usable = total_bytes > 0 && writable;
  const std::string found =
      usable ? fmt::format("{} free of {} in /dev/shm", bytes_text(free_bytes), bytes_text(total_bytes))
             : "/dev/shm is not writable";
  if (usable && free_bytes >= kEnough) return {Kind::fine, "shared memory", found, ""};
  return {Kind::note, "shared memory", found,
          "Concord does not use it, but NCCL does between GPUs of one machine; try docker run --shm-size=2g"};
}

Finding judge_memory(int64_t total_bytes, int64_t available_bytes) {
  const std::string found = fmt::format("{} available of {}", bytes_text(available_bytes), bytes_text(total_bytes));
  if (available_bytes >= kGiB) return {Kind::fine, "memory", found, ""};
  return {Kind::problem, "memory", found, "a rank needs about 300 MiB in addition to its model; close other programs"};
}

Finding judge_disk(const std::string& folder, int64_t free_bytes, bool writable) {
  const std::string found = fmt::format("{} free in {}", bytes_text(free_bytes), folder);
  if (!writable) return {Kind::problem, "disk", folder + " is not writable", "choose another --output_dir"};
  if (free_bytes >= kGiB) return {Kind::fine, "disk", found, ""};
  return {Kind::problem, "disk", found,
          "a checkpoint takes 2 to 4 bytes per parameter; free some space or choose another --output_dir"};
}

Finding judge_cores(int allowed, int present) {
  const std::string found = fmt::format("{} of {} usable", allowed, present);
  if (allowed >= 2) return {Kind::fine, "cores", found, ""};
  return {Kind::note, "cores", found,
          "processes share a core; use --nproc 1, or allow more cores (taskset, docker --cpus)"};
}

Finding judge_python(const std::string& python, bool has_tokenizers, bool has_jinja) {
  if (has_tokenizers && has_jinja) return {Kind::fine, "Python", python + " has tokenizers and jinja2", ""};
  const char* const missing = has_jinja ? "tokenizers" : has_tokenizers ? "jinja2" : "tokenizers and jinja2";
  return {Kind::note, "Python", fmt::format("{} does not have {}", python, missing),
          fmt::format("text with a tokenizer.json needs tokenizers, chat templates need jinja2: {} -m pip install "
                      "tokenizers jinja2, or set CONCORD_PYTHON",
                      python)};
}

std::vector<Finding> examine_machine() {
  std::vector<Finding> findings = examine_plugins();
  findings.push_back(judge_cores(cores_allowed(), static_cast<int>(std::thread::hardware_concurrency())));
  findings.push_back(judge_memory(meminfo("MemTotal"), meminfo("MemAvailable")));
  const FolderSpace shared = space_in("/dev/shm");
  findings.push_back(judge_shared_memory(shared.total, shared.free, shared.writable));
  const std::string here = std::filesystem::current_path().string();
  const FolderSpace disk = space_in(here);
  findings.push_back(judge_disk(here, disk.free, disk.writable));
  findings.push_back(judge_open_files());
  const char* const given = std::getenv("CONCORD_PYTHON");
  const std::string python = given != nullptr && *given != '\0' ? given : "python3";
  findings.push_back(judge_python(python, imports(python, "tokenizers"), imports(python, "jinja2")));
  return findings;
}

std::vector<Finding> examine_platform(const std::string& name) {
  std::vector<Finding> findings;
  std::string places;
  for (const loader::Folder& folder : loader::plugin_folders()) {
    const std::filesystem::path file = std::filesystem::path(folder.path) / ("libconcorddoctor_" + name + ".so");
    places += (places.empty() ? "" : ", ") + file.string();
    if (!std::filesystem::exists(file)) continue;
    const auto examine = reinterpret_cast<concord_doctor_examine_function*>(
        loader::DynamicLibrary::open(file.string()).symbol("concord_doctor_examine"));
    if (examine == nullptr) continue;
    examine(&add_finding, &findings);
    return findings;
  }
  return {{Kind::problem, "platform " + name, "has no checks: tried " + places,
           "see `concord platforms` for its plugin and what it lacks"}};
}

void add_doctor_command(CLI::App* program, int* exit_code, const std::function<Finding()>& last) {
  const auto as_json = std::make_shared<bool>(false);
  const auto platform = std::make_shared<std::string>();
  CLI::App* app = program->add_subcommand("doctor", "check this machine and recommend what to do about each finding");
  app->footer("Exit codes: 0 no problems, 1 problems found, 2 wrong usage.");
  app->add_flag("--json", *as_json, "one JSON document on standard output and nothing else there");
  app->add_option("--platform", *platform, "check the vendor's software of this platform instead: ascend");
  app->callback([as_json, platform, exit_code, last] {
    std::vector<Finding> findings = platform->empty() ? examine_machine() : examine_platform(*platform);
    if (platform->empty() && last) findings.push_back(last());
    *as_json ? print_json(findings) : print_text(findings);
    for (const Finding& finding : findings) {
      if (finding.kind == Kind::problem) *exit_code = 1;
    }
  });
}

}  // namespace concord
