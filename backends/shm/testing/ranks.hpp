// Ranks for the engine's own tests: as threads of this process (which thread sanitizers can watch) or as processes.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/shm/communicator.h"
#include "platform/sdk/plugin.hpp"
#include "tests/processes/spawn.hpp"

namespace concord::shm::testing {

using Id = std::array<std::byte, kUniqueIdBytes>;
using Body = std::function<void(Communicator& comm)>;

inline Id new_id() {
  Id id;
  create_unique_id(id.data(), static_cast<int64_t>(id.size()));
  return id;
}

// A test that hangs fails by TIMEOUT instead; far longer than anything takes here.
inline Options test_options(std::string name = "test", std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  return {std::move(name), timeout, {}};
}

inline std::unique_ptr<Communicator> connect(int world, int rank, const Id& id,
                                             const Options& options = test_options()) {
  return Communicator::connect(world, rank, id.data(), static_cast<int64_t>(id.size()), options);
}

// Runs |body| once per rank, each in its own thread, without a communicator. What it throws fails the test.
inline void in_threads(int world, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&body, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void in_threads(int world, const Body& body, const Options& options = test_options()) {
  const Id id = new_id();
  in_threads(world, [&](int rank) { body(*connect(world, rank, id, options)); });
}

inline void in_processes(int world, const Body& body, const Options& options = test_options()) {
  const Id id = new_id();
  tests::expect_ranks(world, [&](int rank) { body(*connect(world, rank, id, options)); });
}

struct Caught {
  concord_status status = CONCORD_STATUS_OK;
  std::string text;
};

// The failure that |action| throws; OK if it throws none.
template <class Action>
Caught failure_of(Action&& action) {
  try {
    action();
    return {};
  } catch (const sdk::Failure& failure) {
    return {failure.status(), failure.what()};
  }
}

}  // namespace concord::shm::testing
