// Shared by benchmark programs that start jobs: their arguments, and a port for the job.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/free_port.h"

namespace concord::bench {

struct Options {
  bool json = false;
  std::string part;  // substring of the names of the rows to run; empty: all
};

// Parses [part of a name] [--json]. Exits with code 2 for anything else.
inline Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--") && word != "--json") {
      std::fprintf(stderr, "%s: unknown option '%s'; it takes [part of a name] [--json]\n", argv[0], argv[i]);
      std::exit(2);
    }
    options.json |= word == "--json";
    if (!word.starts_with("--")) options.part = word;
  }
  return options;
}

// Restarts the program with OMP_NUM_THREADS=1, as launchers set it for ranks that share the cores, unless it is set
// already. at::set_num_threads within the process is too late: oneDNN's GEMMs on Arm keep the number of threads at load
// time, so that two ranks would wait in each other's barriers.
inline void with_one_thread_a_rank(char** argv) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  setenv("OMP_NUM_THREADS", "1", 1);
  execv("/proc/self/exe", argv);
  std::abort();
}

using tests::free_port;

}  // namespace concord::bench
