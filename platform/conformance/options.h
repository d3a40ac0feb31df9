// The command line of the kit.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace concord::conformance {

struct Options {
  std::string platform;      // empty: the loader's own choice
  int world = 0;             // 0: kDefaultWorld, or kQuickWorld with --quick
  std::string filter;        // a regular expression that is searched in full test names
  std::string report;        // where the JSON goes, besides
  std::string expectations;  // a file, "none", or empty for the one next to the plugin
  bool quick = false;
  bool list = false;
  bool json = false;
  bool perf = false;
  bool help = false;
  bool verbose = false;
  bool overwrite = false;  // |report| may be replaced
  int deadline_s = 0;      // 0: each test's own
  long long perf_max_bytes = 16ll << 20;
  std::vector<std::pair<std::string, std::string>> rank_environment;
  std::string rank_program;

  int largest_world() const;
};

inline constexpr int kDefaultWorld = 8;
inline constexpr int kQuickWorld = 3;
inline constexpr int kPerfWorld = 2;

// Throws std::invalid_argument with a message if the arguments are wrong. '-' and '_' mean the same in names.
Options parse_options(const std::vector<std::string>& arguments);

// Throws std::invalid_argument if the report would replace an input, or a file without --overwrite.
void check_report(const Options& options);

std::string usage();

}  // namespace concord::conformance
