// The tests that a backend is known to fail or not to support: a JSON file next to it, verified by every run.
//
//   { "unsupported":      [ {"test": "comm\\..*Avg.*", "reason": "HCCL has no AVG"} ],
//     "expected_failure": [ {"test": "event\\.ElapsedIsInMilliseconds", "reason": "bug 17"} ] }
//
// "test" is a regular expression for whole test names. A test that the plugin declares unsupported must be listed, or
// it fails: a capability cannot disappear unnoticed. A listed test that passes fails, and so does an entry that matches
// no test.
#pragma once

#include <regex>
#include <string>
#include <vector>

#include "platform/conformance/json.h"
#include "platform/conformance/processes/channel.h"

namespace concord::conformance {

class Expectations {
 public:
  // Nothing is expected, and nothing is verified: for a plugin without a file.
  Expectations() = default;

  // Throws std::runtime_error if |document| does not have the form above.
  explicit Expectations(const Json& document);
  static Expectations read(const std::string& path);

  // Returns the verdict for |result| of the test called |name|.
  TestResult judge(const std::string& name, const TestResult& result) const;

  // A sentence for each entry that matches none of |names|.
  std::vector<std::string> unmatched(const std::vector<std::string>& names) const;

 private:
  struct Entry {
    std::string pattern;
    std::regex test;
    std::string reason;
  };
  static std::vector<Entry> parse_entries(const Json& document, const std::string& list);
  static const Entry* find(const std::vector<Entry>& entries, const std::string& name);

  bool verify_ = false;
  std::vector<Entry> unsupported_;
  std::vector<Entry> expected_failure_;
};

}  // namespace concord::conformance
