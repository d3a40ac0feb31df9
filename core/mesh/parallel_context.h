// The context of a rank in its job: created once and passed down. The only global is the one of core/mesh/initialize.h.
//
// Groups. group(kind) is cheap and never waits; its communicator is created at the first operation (channel.h says how,
// and why overlapping groups cannot deadlock). Groups of the same ranks share one communicator, because it is
// expensive: some vendors allocate hundreds of megabytes for each. create_groups creates some of them immediately, on
// all ranks together, and splits a communicator if the plugin can, which is much cheaper than creating each separately.
// Threads: any thread, except rng(), which belongs to the thread that computes.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mesh/channel.h"
#include "core/mesh/platform_map.h"
#include "core/mesh/process_group.h"
#include "core/mesh/rank_layout.h"
#include "core/mesh/rng_tracker.h"
#include "core/mesh/store/store.h"
#include "core/mesh/watch/flight_service.h"
#include "core/mesh/watch/watchdog.h"
#include "platform/base/thread_safety.hpp"
#include "platform/cpp/device.hpp"

namespace concord {

class JobBoard;

class ParallelContext {
 public:
  struct Options {
    Device device;
    RankLayout layout;
    int64_t rank = 0;
    std::shared_ptr<Store> store;  // exclusive to this job; all ranks have joined it
    RngSeeds seeds{};
    std::chrono::milliseconds timeout{std::chrono::minutes(30)};
    bool check_calls = false;         // see call_checker.h
    std::string flight_folder = ".";  // folder for the flight recorder's file after a failure
    int64_t local_rank = 0;           // index among the processes of this machine
    PlatformMap platforms{};          // the platform of each rank
  };
  explicit ParallelContext(Options options);
  ~ParallelContext();
  ParallelContext(const ParallelContext&) = delete;
  ParallelContext& operator=(const ParallelContext&) = delete;

  const Platform& platform() const { return options_.device.platform(); }
  // Returns the platform of each rank, as exchanged at the rendezvous; not mixed if all are the same.
  const PlatformMap& platforms() const { return options_.platforms; }
  const Device& device() const { return options_.device; }
  c10::Device torch_device() const { return torch_device_; }
  const RankLayout& layout() const { return options_.layout; }
  int64_t rank() const { return options_.rank; }
  int64_t world() const { return options_.layout.world(); }
  const RankCoordinates& coordinates() const { return coordinates_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  Store& store() { return *options_.store; }
  RngTracker& rng() { return rng_; }
  FlightService& flight() { return flight_; }
  const CommunicationTime& communication_time() const { return *communication_time_; }
  FlightRecorder& flight_recorder() { return flight_.recorder(); }

  // Returns false if this rank is in no group of |kind|: not all ranks are in an embedding group.
  bool has_group(GroupKind kind) const { return layout().group_of(kind, rank()).has_value(); }
  // Throws Error (INVALID_ARGUMENT) if this rank is in no such group.
  ProcessGroup& group(GroupKind kind);
  ProcessGroup& world_group();

  // Creates the communicators of |kinds| now. Every rank of the world calls it with the same list. Waits: for all of
  // them.
  void create_groups(std::span<const GroupKind> kinds);

  // Returns whether some group has failed (lost peer, timeout or similar): the job cannot continue.
  bool failed();
  // Stops the thread that checks for failures and replies to other ranks. For a process that is about to exit.
  void stop_watching() { watchdog_.stop(); }
  // For a process that exits in the middle of a job: notifies the others and lets the culprit, if known, exit first
  // (Peers::blame). Waits: for its exit, a few seconds at most. Never throws.
  void abandon() noexcept;

 private:
  std::shared_ptr<Channel> channel_for(const RankGroup& ranks, const std::string& name) CONCORD_REQUIRES(mutex_);
  ProcessGroup& make_group(const std::string& name, const RankGroup& ranks);
  std::string channel_name(const RankGroup& ranks) const;
  std::vector<GroupKind> kinds_to_create(std::span<const GroupKind> kinds) const;
  void split_from_world(std::span<const GroupKind> kinds);
  void answer_launcher() noexcept;

  Options options_;
  c10::Device torch_device_;
  RankCoordinates coordinates_;
  RngTracker rng_;
  FlightService flight_;
  std::unique_ptr<JobBoard> board_;  // the launcher's, if any
  const std::shared_ptr<CommunicationTime> communication_time_ = std::make_shared<CommunicationTime>();
  Watchdog watchdog_;

  std::mutex mutex_;  // guards the lists below; their entries are never removed
  std::vector<std::shared_ptr<Channel>> channels_ CONCORD_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<ProcessGroup>> groups_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord
