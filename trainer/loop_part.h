// The interface of the objects that act between two training steps: Health, StepLog, Evaluator, Checkpointer and
// ExitConditions. Each owns the state of one concern; the loop (trainer/trainer.h) calls all of them after every step:
//
//   request      on each rank: log lines, evaluations, checkpoints or the end of the run
//   agree_on     values of which all ranks use the maximum, besides the requests
//   advance      work that spans several steps, such as a save in the background
//   act          what the ranks have agreed on
//
// Every rank makes the same calls in the same order. Threads: training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "trainer/arguments/run_arguments.h"

namespace concord {

struct RunContext;
struct TrainingState;

// The values on which the ranks agree after a step: all ranks get the maximum of each.
class StepAgreement {
 public:
  // Adds |*value|, an integer, bool or enumeration, which all_reduce overwrites. Every rank adds the same values in the
  // same order.
  template <class Value>
  void add(Value* value) {
    values_.push_back(static_cast<int64_t>(*value));
    results_.emplace_back([value](int64_t agreed) { *value = static_cast<Value>(agreed); });
  }
  // Waits: for all ranks.
  void all_reduce(ParallelContext& job) const;

 private:
  std::vector<int64_t> values_;
  std::vector<std::function<void(int64_t)>> results_;
};

class LoopPart {
 public:
  // |run| must outlive the part.
  explicit LoopPart(RunContext& run) : run_(run) {}
  virtual ~LoopPart() = default;
  LoopPart(const LoopPart&) = delete;
  LoopPart& operator=(const LoopPart&) = delete;

  // Sets the requests of this rank in the control of the run. |ends_epoch|: the step was the last of its epoch.
  virtual void request(bool /*ends_epoch*/) {}
  // Adds the values of this part on which the ranks agree.
  virtual void agree_on(StepAgreement* /*agreement*/) {}
  // Advances work that spans steps. Returns whether callbacks ran, so that the ranks have to agree again.
  virtual bool advance() { return false; }
  // Does what the ranks have agreed on, and clears the request. Returns whether callbacks ran, as advance() does.
  virtual bool act() { return false; }

  // Writes the state of this part to that of a checkpoint, and restores it. May wait for all ranks.
  virtual void save(TrainingState* /*state*/) {}
  virtual void restore(const TrainingState& /*state*/) {}

 protected:
  RunContext& run_;
};

// When something happens: every N steps, or at the end of every epoch.
class StepInterval {
 public:
  // |steps| is a number of steps, or below 1 a fraction of |max_steps|.
  StepInterval(IntervalStrategy strategy, double steps, int64_t max_steps);

  bool is_due(int64_t step, bool ends_epoch) const;

 private:
  int64_t steps_;  // 0: never
  bool every_epoch_;
};

// Returns whether |step| is a multiple of |interval|; false if |interval| is 0.
inline bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

}  // namespace concord
