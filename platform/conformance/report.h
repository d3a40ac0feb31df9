// The results of a run, as JSON for scripts and as text.
#pragma once

#include <string>
#include <vector>

#include "platform/conformance/json.h"
#include "platform/conformance/processes/channel.h"

namespace concord::conformance {

struct Report {
  PluginInfo plugin;
  int world = 0;  // the largest
  bool quick = false;
  struct Row {
    std::string name;
    TestResult result;
  };
  std::vector<Row> rows;
  std::string refusal;  // why the plugin could not be opened; empty if it was

  int count(Status status) const;
  // "conformant", "not conformant", "nothing ran"
  std::string verdict() const;
  int exit_code() const { return verdict() == "conformant" ? 0 : 1; }

  Json to_json() const;
  // The last lines: failures again, skips by reason, counts, the largest share of an error bound, the verdict.
  std::string closing() const;
};

// "pass    0.012 s   43 %  comm.AllReduce..." and the reason, if there is one.
std::string row_text(const Report::Row& row);

}  // namespace concord::conformance
