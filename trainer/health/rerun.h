// The rerun state machine: how a step with suspicious numbers is investigated, and the verdict. Like Megatron's, but
// within one process, and with the other replicas instead of another job. Pure functions and plain values; needs no
// libtorch. Threads: any.
//
//   start --symptom--> repeating --it stays--> comparing --nothing is damaged--> exchanging --no device--> inherent
//     |                    |                       |         (no replicas: inherent)   |
//     v                    v                       v                                   v
//   fine               transient: it is gone   damaged, or repairing --> repaired   persistent: a device is to blame
//
// repeating: the same ranks compute the step again, from the same weights, batches and random numbers.
// comparing: nothing is computed. A step from weights that are damaged in a rank's memory looks like the work of a bad
// device, also on another batch, but the device is not to blame: so the weights of the replicas are compared first.
// repairing: what is damaged is copied from a replica, and the step is computed again.
// exchanging: each replica computes the batch of the next one; the weights are the same, so the bits have to be.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/arguments/run_arguments.h"

namespace concord {

enum class Symptom { none, not_finite, spike };
std::string_view to_string(Symptom symptom);

enum class RerunState {
  start,
  repeating,
  comparing,
  repairing,
  exchanging,
  // Verdicts.
  fine,
  transient,   // a fault that was gone a moment later
  repaired,    // weights were damaged in memory; they are those of a replica again
  damaged,     // weights are damaged in memory, and no replica is known to be intact
  persistent,  // a fault that stays with a device
  inherent,    // a property of the data and the model
};
std::string_view to_string(RerunState state);
bool is_verdict(RerunState state);

// Result of the computation that a state asks for. Identical on all ranks.
struct RerunObservation {
  bool symptom = false;     // start, repeating, repairing: the numbers look wrong
  bool damage = false;      // comparing: weights differ between replicas, or are not finite
  bool intact = false;      // comparing: a replica has what they were
  bool replicas = false;    // comparing, repairing: there is another replica to exchange batches with
  bool blames_any = false;  // exchanging: judge_exchange has named a device
};
// Returns the next state. Verdicts do not change.
RerunState next(RerunState state, const RerunObservation& observation);
// Returns all transitions, one line per transition: "repeating   symptom -> comparing". A state depends on its own
// observations only.
std::string transition_table();

// Results of a replica for one batch.
struct ReplicaResult {
  int64_t bits = 0;  // a checksum of the losses and the gradients
  bool finite = true;
  bool operator==(const ReplicaResult&) const = default;
};
struct ExchangeResult {
  ReplicaResult own;   // result for batch i on device i
  ReplicaResult next;  // result for batch i + 1 on device i; for batch 0 on the last device
};
// Returns the indices of faulty devices from the results of all devices, in order. A device is faulty if its numbers
// are not finite while another device has finite ones for the same batch. Otherwise, if results of the same device are
// |reproducible|, it is the one that differs from both of its neighbours; if several differ from one neighbour, all of
// them are returned.
std::vector<int64_t> judge_exchange(std::span<const ExchangeResult> results, bool reproducible);

// Decision about the step.
enum class StepDecision {
  update,  // apply the update
  skip,    // no update
  stop,
};
std::string_view to_string(StepDecision decision);
// With RerunAction::go_on, the result of a repetition is used after a transient fault or repaired weights, and an
// inherent spike is applied. A faulty device or a gradient that is not finite still stops the run. Damaged weights stop
// the run whatever the action is: the steps after a skipped one would be wrong too.
StepDecision decide_step(RerunState verdict, Symptom symptom, RerunAction action);

}  // namespace concord
