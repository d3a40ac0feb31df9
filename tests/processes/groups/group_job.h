// Jobs for the tests of groups: real processes that call concord::initialize.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "core/mesh/initialize.h"
#include "tests/free_port.h"
#include "tests/processes/spawn.hpp"
#include "tests/temporary_folder.h"

namespace concord::tests {

// A process that has computed with several threads cannot start ranks by fork: they would wait for threads that they do
// not have. ctest sets OMP_NUM_THREADS to 1; this is for programs started by hand.
inline const bool kComputesWithOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

inline void set_variable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

// Sets the environment that torchrun gives to |rank|.
inline void enter_job(int rank, int world, int port) {
  set_variable("RANK", std::to_string(rank));
  set_variable("WORLD_SIZE", std::to_string(world));
  set_variable("LOCAL_RANK", std::to_string(rank));
  set_variable("LOCAL_WORLD_SIZE", std::to_string(world));
  set_variable("MASTER_ADDR", "127.0.0.1");
  set_variable("MASTER_PORT", std::to_string(port));
  at::set_num_threads(1);  // ranks outnumber the cores
}

using JobBody = std::function<void(ParallelContext&)>;

// Every rank of a job initialises, runs |body| and finalises.
inline void expect_job(int world, const InitializeArgs& args, const JobBody& body) {
  const int port = free_port();
  expect_ranks(world, [&](int rank) {
    enter_job(rank, world, port);
    body(initialize(args));
    finalize();
  });
}

}  // namespace concord::tests
