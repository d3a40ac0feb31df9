// Runs the conformance kit on every mutant and checks that the tests for it fail and that the others pass.
//
//   mutants --conform PROGRAM --mutant LIBRARY --base PLUGIN [--expectations FILE] [--filter RE] [--jobs N] [--strict]
//
// Prints the table of mutant -> test. Exits with 1 if a mutant survives, or if the plugin without a defect does not
// pass. Built once per list of mutants (CONCORD_MUTANTS): mutants.inc, whose defects libconcord_mutant.so adds to any
// plugin, and a vendor's own. A mutant whose tests the plugin skips does not apply to it; with --strict that is a
// failure too.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "platform/conformance/json.h"

namespace concord::mutants {
namespace {

using conformance::Json;

struct Mutant {
  const char* name;
  const char* what;
  const char* meant;
  const char* control;
};

constexpr Mutant kMutants[] = {
#define MUTANT(name, what, meant, control) {#name, what, meant, control},
#include CONCORD_MUTANTS
#undef MUTANT
};

struct Options {
  std::string conform, mutant, base, expectations = "none", filter;
  std::string deadline = "6";         // seconds per test on a mutant, since some of them hang
  std::vector<std::string> rank_env;  // passed on to the kit
  int jobs = 2;
  bool strict = false;
};

struct Outcome {
  std::string status;
  std::string reason;
};
using Outcomes = std::map<std::string, Outcome>;  // by test name

// The only test that --quick omits and that a mutant needs.
constexpr const char* kLongTest = "memory\\.CopiesAndFillsBeyondTwoGigabytesAreWhole";
bool is_long(const Mutant& mutant) { return std::string(mutant.meant) == kLongTest; }

std::string whole(const std::string& pattern) { return "^(" + pattern + ")$"; }

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs the kit on the mutant |name| (empty: no defect) and reads its report. Ignores the kit's own exit code, which is
// 1 if a mutant is caught.
Outcomes run_kit(const Options& options, const std::string& name, const std::string& filter, bool quick) {
  char report[] = "/tmp/concord-mutant-XXXXXX";
  const int file = mkstemp(report);
  if (file < 0) throw std::runtime_error("cannot make a temporary file");
  close(file);
  std::vector<std::string> arguments = {
      options.conform, "--platform",     options.mutant,       "--filter", filter, "--report",
      report,          "--expectations", options.expectations, "--world",  "3",    "--overwrite"};
  if (!name.empty()) arguments.insert(arguments.end(), {"--deadline", options.deadline});
  for (const std::string& setting : options.rank_env) arguments.insert(arguments.end(), {"--rank_env", setting});
  if (quick) arguments.push_back("--quick");
  const pid_t child = fork();
  if (child == 0) {
    setenv("CONCORD_MUTANT", name.c_str(), 1);
    setenv("CONCORD_MUTANT_BASE", options.base.c_str(), 1);
    setenv("CONCORD_CPU_DEVICES", "2", 0);  // so that tests of two devices run on the cpu plugin too
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(126);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const std::string text = read_file(report);
  unlink(report);
  if (text.empty()) throw std::runtime_error("the kit left no report");
  Outcomes outcomes;
  const Json document = Json::parse(text);
  if (!document["error"].text().empty()) throw std::runtime_error(document["error"].text());
  for (const Json& test : document["tests"].items()) {
    outcomes[test["name"].text()] = {test["status"].text(), test["reason"].text()};
  }
  return outcomes;
}

// Returns the tests of |outcomes| that |pattern| matches.
std::vector<std::string> matching(const Outcomes& outcomes, const std::string& pattern) {
  const std::regex expression(whole(pattern));
  std::vector<std::string> names;
  for (const auto& [name, outcome] : outcomes) {
    if (std::regex_match(name, expression)) names.push_back(name);
  }
  return names;
}

enum class Verdict { kCaught, kSurvived, kDoesNotApply };

struct Judgement {
  Verdict verdict = Verdict::kCaught;
  std::string reason;
};

// |verified|: there is an expectations file, so a test that the mutant skips has failed unless the file lists it.
Judgement judge(const Mutant& mutant, const Outcomes& healthy, const Outcomes& outcomes, bool verified) {
  const std::vector<std::string> meant = matching(outcomes, mutant.meant);
  const std::vector<std::string> control = matching(outcomes, mutant.control);
  if (meant.empty() || control.empty()) return {Verdict::kSurvived, "a pattern of the table matches no test"};
  for (const std::string& name : meant) {
    if (healthy.at(name).status == "skip")
      return {Verdict::kDoesNotApply, name + " is skipped: " + healthy.at(name).reason};
    if (!verified && outcomes.at(name).status == "skip")
      return {Verdict::kDoesNotApply, name + " is declared unsupported, which only expectations can find fault with"};
    if (outcomes.at(name).status != "fail")
      return {Verdict::kSurvived, name + " did not fail: " + outcomes.at(name).status};
  }
  for (const std::string& name : control) {
    if (outcomes.at(name).status == "fail")
      return {Verdict::kSurvived, name + " should not fail: " + outcomes.at(name).reason};
  }
  return {Verdict::kCaught, outcomes.at(meant.front()).reason};
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

class Run {
 public:
  explicit Run(const Options& options) : options_(options) {
    const std::regex filter(options.filter);
    for (const Mutant& mutant : kMutants) {
      if (std::regex_search(mutant.name, filter)) mutants_.push_back(mutant);
    }
  }

  // The plugin without a defect must pass all tests that any mutant should fail.
  bool healthy_plugin_passes() {
    std::string filter;
    for (const Mutant& mutant : mutants_)
      filter += std::string(filter.empty() ? "" : "|") + mutant.meant + "|" + mutant.control;
    healthy_ = run_kit(options_, "", whole(filter), true);
    if (std::any_of(mutants_.begin(), mutants_.end(), is_long))
      healthy_.merge(run_kit(options_, "", whole(kLongTest), false));
    bool passes = !healthy_.empty();
    for (const auto& [name, outcome] : healthy_) {
      if (outcome.status != "fail") continue;
      std::printf("without a defect, %s fails: %s\n", name.c_str(), outcome.reason.c_str());
      passes = false;
    }
    return passes;
  }

  void run_mutants() {
    std::vector<std::thread> threads;
    std::atomic<size_t> next{0};
    for (int i = 0; i < options_.jobs; ++i) {
      threads.emplace_back([&] {
        for (size_t at = next++; at < mutants_.size(); at = next++) run_mutant(mutants_[at]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  int close() const {
    std::printf("\n%d mutants: %d caught, %d survived, %d do not apply\n", static_cast<int>(mutants_.size()),
                count(Verdict::kCaught), count(Verdict::kSurvived), count(Verdict::kDoesNotApply));
    const bool failed = count(Verdict::kSurvived) > 0 || (options_.strict && count(Verdict::kDoesNotApply) > 0);
    return mutants_.empty() || failed ? 1 : 0;
  }

 private:
  void run_mutant(const Mutant& mutant) {
    Judgement judgement;
    try {
      const std::string filter = whole(std::string(mutant.meant) + "|" + mutant.control);
      const Outcomes outcomes = run_kit(options_, mutant.name, filter, !is_long(mutant));
      judgement = judge(mutant, healthy_, outcomes, options_.expectations != "none");
    } catch (const std::exception& error) {
      judgement = {Verdict::kSurvived, error.what()};
    }
    static constexpr const char* words[] = {"caught  ", "SURVIVED", "n/a     "};
    const std::lock_guard lock(mutex_);
    counts_[judgement.verdict] += 1;
    std::printf("%s %-36s %s\n         %s\n         -> %s\n", words[static_cast<int>(judgement.verdict)], mutant.name,
                mutant.what, std::regex_replace(mutant.meant, std::regex("\\\\"), "").c_str(),
                first_line(judgement.reason).c_str());
    std::fflush(stdout);
  }

  int count(Verdict verdict) const {
    const auto found = counts_.find(verdict);
    return found != counts_.end() ? found->second : 0;
  }

  const Options& options_;
  std::vector<Mutant> mutants_;
  Outcomes healthy_;
  std::mutex mutex_;
  std::map<Verdict, int> counts_;
};

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, std::string*> texts = {
      {"--conform", &options.conform},           {"--mutant", &options.mutant}, {"--base", &options.base},
      {"--expectations", &options.expectations}, {"--filter", &options.filter}, {"--deadline", &options.deadline}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--strict") {
      options.strict = true;
      continue;
    }
    if (i + 1 >= argc) throw std::invalid_argument(name + " needs a value");
    if (name == "--jobs") {
      options.jobs = std::max(1, std::atoi(argv[++i]));
    } else if (name == "--rank_env") {
      options.rank_env.push_back(argv[++i]);
    } else if (texts.count(name) != 0) {
      *texts.at(name) = argv[++i];
    } else {
      throw std::invalid_argument("there is no option " + name);
    }
  }
  if (options.conform.empty() || options.mutant.empty() || options.base.empty()) {
    throw std::invalid_argument("--conform, --mutant and --base are needed");
  }
  return options;
}

}  // namespace
}  // namespace concord::mutants

int main(int argc, char** argv) {
  using namespace concord::mutants;
  try {
    const Options options = parse(argc, argv);
    Run run(options);
    if (!run.healthy_plugin_passes()) {
      std::printf("the plugin without a defect does not pass: nothing can be said about mutants\n");
      return 1;
    }
    run.run_mutants();
    return run.close();
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "mutants: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mutants: %s\n", error.what());
    return 1;
  }
}
