#include "platform/conformance/options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <stdexcept>

namespace concord::conformance {
namespace {

long long parse_number(const std::string& name, const std::string& value, long long least, long long most) {
  char* end = nullptr;
  const long long number = std::strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0' || number < least || number > most) {
    throw std::invalid_argument("--" + name + " is '" + value + "'; it must be an integer from " +
                                std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

std::pair<std::string, std::string> parse_assignment(const std::string& value) {
  const size_t equals = value.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw std::invalid_argument("--rank_env is '" + value + "'; it must be NAME=VALUE");
  }
  return {value.substr(0, equals), value.substr(equals + 1)};
}

void check_filter(const std::string& filter) {
  try {
    const std::regex test(filter);
  } catch (const std::regex_error& error) {
    throw std::invalid_argument("--filter '" + filter + "' is not a regular expression: " + error.what());
  }
}

using Flags = std::map<std::string, bool*>;
using Values = std::map<std::string, std::function<void(const std::string&)>>;

Values value_options(Options& options) {
  const auto text_into = [](std::string& field) { return [&field](const std::string& value) { field = value; }; };
  return {
      {"platform", text_into(options.platform)},
      {"report", text_into(options.report)},
      {"rank_program", text_into(options.rank_program)},
      {"expectations", text_into(options.expectations)},
      {"filter",
       [&options](const std::string& value) {
         check_filter(value);
         options.filter = value;
       }},
      {"world",
       [&options](const std::string& value) {
         options.world = static_cast<int>(parse_number("world", value, 1, 1024));
       }},
      {"deadline",
       [&options](const std::string& value) {
         options.deadline_s = static_cast<int>(parse_number("deadline", value, 1, 86400));
       }},
      {"max_bytes",
       [&options](const std::string& value) {
         options.perf_max_bytes = parse_number("max_bytes", value, 8, 1ll << 34);
       }},
      {"rank_env",
       [&options](const std::string& value) { options.rank_environment.push_back(parse_assignment(value)); }},
  };
}

}  // namespace

int Options::largest_world() const {
  if (world > 0) return world;
  return perf ? kPerfWorld : quick ? kQuickWorld : kDefaultWorld;
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  const Flags flags = {{"quick", &options.quick},        {"list", &options.list}, {"json", &options.json},
                       {"perf", &options.perf},          {"help", &options.help}, {"verbose", &options.verbose},
                       {"overwrite", &options.overwrite}};
  const Values values = value_options(options);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "-h") {
      options.help = true;
      continue;
    }
    if (arguments[i].rfind("--", 0) != 0) {
      throw std::invalid_argument("unexpected argument '" + arguments[i] + "'; see --help");
    }
    const size_t equals = arguments[i].find('=');
    std::string name = arguments[i].substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    if (const auto flag = flags.find(name); flag != flags.end() && equals == std::string::npos) {
      *flag->second = true;
    } else if (const auto value = values.find(name); value == values.end()) {
      throw std::invalid_argument("unknown option '" + arguments[i] + "'; see --help");
    } else if (equals != std::string::npos) {
      value->second(arguments[i].substr(equals + 1));
    } else if (i + 1 < arguments.size()) {
      value->second(arguments[++i]);
    } else {
      throw std::invalid_argument(arguments[i] + " needs a value");
    }
  }
  return options;
}

void check_report(const Options& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(options.report, error);
  if (options.report.empty() || !fs::exists(status)) return;
  for (const std::string& input : {options.platform, options.expectations, options.rank_program}) {
    if (!fs::equivalent(options.report, input, error) || error) continue;
    throw std::invalid_argument("--report '" + options.report + "' would overwrite '" + input +
                                "', an input of this command; choose another file");
  }
  if (!fs::is_regular_file(options.report, error))
    throw std::invalid_argument("--report '" + options.report + "' is not a regular file; choose another file");
  if (!options.overwrite)
    throw std::invalid_argument("'" + options.report +
                                "' already exists; choose another --report, or pass --overwrite");
}

std::string usage() {
  return R"(Checks a device plugin against the contract of platform/abi, by value, in separate processes.

  --platform P        the plugin: cpu, cuda, ascend, or a path to its file; bridge:P,Q is the bridge between ranks on
                      P and on Q, in turn. Default: CONCORD_PLATFORM, or the best found
  --world N           tests of several ranks run with each of 1, 2, 3, 4 and 8 ranks up to N, and with N itself.
                      Default: 8; 3 with --quick; 2 with --perf, which runs with N ranks only
  --quick             a shorter run for everyday work
  --filter RE         only tests whose name matches the regular expression
  --list              print the tests, and run none
  --report FILE       write the report as JSON to FILE
  --overwrite         replace an existing FILE
  --json              print the report as JSON, and nothing else, to standard output
  --expectations F    what is known not to work ('none': nothing). Default: the file next to the plugin,
                      libconcord_<name>.expectations.json
  --deadline S        end a test that has not finished after S seconds. Default: each test's own, 30 or more
  --rank_env N=V      set an environment variable for each rank; {rank} in V is replaced by its rank. Can be repeated
  --rank_program P    start each rank as 'P RANK WORLD COMMAND...'; P becomes COMMAND, say on another host
  --perf              measure latency and bandwidth of each collective by size; no tests are run
  --max_bytes B       the largest size that --perf measures. Default: 16777216
  --verbose           show what the tested processes write to standard error
  --help              this text

Exit codes: 0 conformant, 1 not conformant or nothing ran, 2 wrong usage. See also docs/conformance.md.
)";
}

}  // namespace concord::conformance
