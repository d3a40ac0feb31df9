// Ports for the jobs that tests and benchmarks start.
#pragma once

#include <vector>

#include "core/mesh/store/master_port.h"

namespace concord::tests {

// Returns a port that no other process gets until this one exits: the reservation is kept while the job starts, runs
// and ends. The store of a job can listen on it (see HeldPort).
inline int free_port() {
  static std::vector<HeldPort> held;
  return held.emplace_back().port();
}

}  // namespace concord::tests
