// Named random streams, like Megatron's, but counter-based: a stream is three integers, so saving, restoring and
// replaying cost nothing, and its numbers are the same on every vendor's device (platform/cpp/rng.hpp).
//
//   default, data-parallel-rng   s                          the same on all tensor-parallel ranks
//   model-parallel-rng           s + 2718 + tp              different on each: dropout inside tensor-parallel regions
//   expert-parallel-rng          s + 1024 + 100 * ep + etp  different for each expert's part
// where s = seed + 100 * pp, plus 10 * dp if data-parallel ranks should differ too. These are Megatron's offsets; they
// are the stream's key. The subsequence is stable_hash of the name, so that no two streams ever overlap, even with
// equal keys.
//
// Code draws from current(), which is "default" except within a fork. Recomputation draws the same numbers again.
//
// Example, given RngTracker& rng, void draw(Generator&):
//   {
//     const auto scope = rng.fork(kModelParallelRng);
//     draw(rng.current());
//   }  // then "default" again
//   const auto before = rng.save();
//   draw(rng.current());
//   {
//     const auto scope = rng.replay(before);
//     draw(rng.current());  // the same numbers
//   }
//
// libtorch's own generators are seeded by initialize(), and are neither saved nor replayed here.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mesh/rank_layout.h"
#include "platform/cpp/rng.hpp"

namespace concord {

inline constexpr std::string_view kDefaultRng = "default";
inline constexpr std::string_view kDataParallelRng = "data-parallel-rng";
inline constexpr std::string_view kModelParallelRng = "model-parallel-rng";
inline constexpr std::string_view kExpertParallelRng = "expert-parallel-rng";

struct RngSeeds {
  uint64_t data_parallel;  // also for "default" and for libtorch's generators
  uint64_t model_parallel;
  uint64_t expert_parallel;
  bool operator==(const RngSeeds&) const = default;
};

// Throws ConfigError if |seed| is not positive, as Megatron and ROLL do.
RngSeeds rng_seeds(int64_t seed, const RankCoordinates& place, bool data_parallel_random_init);

// A stream's name and position.
struct RngState {
  std::string name;
  Generator::State state;
  bool operator==(const RngState&) const = default;
};

class RngTracker {
 public:
  explicit RngTracker(const RngSeeds& seeds) { reseed(seeds); }
  RngTracker(const RngTracker&) = delete;
  RngTracker& operator=(const RngTracker&) = delete;

  // Resets all streams and removes those that were added.
  void reseed(const RngSeeds& seeds);
  // Adds a stream. Throws ConfigError if the name is taken.
  void add(std::string_view name, uint64_t seed);

  Generator& current() { return streams_[current_].generator; }
  const std::string& current_name() const { return streams_[current_].name; }

  // Makes a stream the current one until the end of the scope. Scopes nest.
  class Fork {
   public:
    Fork(const Fork&) = delete;
    Fork& operator=(const Fork&) = delete;
    ~Fork() { tracker_.current_ = before_ < tracker_.streams_.size() ? before_ : 0; }  // reseed may have removed it

   private:
    friend class RngTracker;
    Fork(RngTracker& tracker, size_t index) : tracker_(tracker), before_(tracker.current_) {
      tracker_.current_ = index;
    }
    RngTracker& tracker_;
    size_t before_;
  };
  // Throws ConfigError with the known names if |name| is unknown.
  [[nodiscard]] Fork fork(std::string_view name);

  std::vector<RngState> save() const;
  // Streams that |states| does not name are unchanged. Throws ConfigError for an unknown name.
  void restore(std::span<const RngState> states);

  // Resets the streams to |states| until the end of the scope, then restores their previous positions.
  class Replay {
   public:
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;
    ~Replay() { tracker_.restore_known(after_); }

   private:
    friend class RngTracker;
    Replay(RngTracker& tracker, std::span<const RngState> states) : tracker_(tracker), after_(tracker.save()) {
      tracker_.restore(states);
    }
    RngTracker& tracker_;
    std::vector<RngState> after_;
  };
  [[nodiscard]] Replay replay(std::span<const RngState> states) { return {*this, states}; }

 private:
  struct Stream {
    std::string name;
    Generator generator;
  };
  size_t index_of(std::string_view name) const;
  void restore_known(std::span<const RngState> states) noexcept;  // skips streams that reseed has removed

  std::vector<Stream> streams_;
  size_t current_ = 0;
};

}  // namespace concord
