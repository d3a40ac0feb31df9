#include "trainer/health/step_validator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "core/data_parallel/checksum.h"
#include "core/mesh/agreement.h"
#include "core/mesh/bad_device.h"
#include "core/mesh/rank_list.h"
#include "core/torch/host_copy.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"
#include "trainer/health/loss_check.h"

namespace concord {

struct StepValidator::Local {
  ReplicaResult result;
  std::string problem;  // what is not finite, and where
};

// A repetition of the step.
struct StepValidator::Repetition {
  StepAttempt attempt;
  Local local;  // before the reductions
  bool symptom = false;
};

// State of an investigation, identical on all ranks.
struct StepValidator::Finding {
  int64_t step = 0;
  Symptom symptom = Symptom::none;
  Numbers numbers;   // numbers with the symptom
  Numbers repeated;  // numbers of the last repetition
  RerunState state = RerunState::start;
  bool exchanged = false;
  std::vector<int64_t> suspects;  // ranks
  std::string damage;             // ranks and names of damaged weights; empty: none

  std::string message() const;
  std::optional<int64_t> culprit() const { return suspects.size() == 1 ? std::optional(suspects[0]) : std::nullopt; }
};

namespace {

bool have_same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

}  // namespace

// Returns a message with the symptom, the verdict and the suspects.
std::string StepValidator::Finding::message() const {
  const std::string seen = fmt::format("step {} has {} (loss {:.6g}, gradient norm {:.6g})", step,
                                       symptom == Symptom::spike ? "a spike" : "numbers that are not finite",
                                       numbers.loss, numbers.grad_norm);
  switch (state) {
    case RerunState::transient:
      return fmt::format(
          "{}, but not when it is computed again from the same state (loss {:.6g}, gradient norm {:.6g}): a transient "
          "fault{}",
          seen, repeated.loss, repeated.grad_norm,
          suspects.empty() ? ", after the losses, which are the same on every rank"
                           : fmt::format(" of {}, where the losses differ", rank_list(suspects)));
    case RerunState::repaired:
      return fmt::format("{}, because {}: damaged in memory, a transient fault; the weights were copied from a replica",
                         seen, damage);
    case RerunState::damaged: return fmt::format("{}, because {}: damaged in memory, a transient fault", seen, damage);
    case RerunState::persistent:
      return fmt::format(
          "{}, and another replica computes other numbers from the same batch: a persistent fault of the device of "
          "{}{}",
          seen, suspects.size() == 1 ? "" : "one of ", rank_list(suspects));
    default:
      return fmt::format("{}, also when it is computed again{}: a property of the data and the model", seen,
                         exchanged ? ", and on another replica" : "");
  }
}

StepValidator::StepValidator(TrainingParts& parts, ParallelContext& job, ReplicaCheck& replicas,
                             const StepValidatorOptions& options)
    : parts_(parts),
      job_(job),
      replicas_(replicas),
      options_(options),
      losses_(options.spike_factor),
      grad_norms_(options.spike_factor) {}

void StepValidator::begin(const std::vector<MicroBatch>& host_batches, int64_t number) {
  host_batches_ = &host_batches;
  rng_ = job_.rng().save();
  number_ = number;
}

// The device may start the update before the host knows of a symptom, since it checks itself that norm and loss are
// finite. Spikes are detected by the host, before any update.
void StepValidator::watch_losses(StepAttempt* attempt) {
  sum_losses(*attempt);
  attempt->launches_update = options_.spike_factor == 0;
  if (options_.stops_on_not_finite) attempt->finite_loss = loss_sum_;
}

// Completes a repetition, without an update.
void StepValidator::reduce_grads_and_norm(const std::vector<MicroBatch>& batches, StepAttempt* attempt) {
  sum_losses(*attempt);
  reduce_grads(parts_, batches, attempt);
  measure(parts_, attempt);
}

// Called before the wait for the gradient norm: after it the device would idle during the copy. Tensor-parallel ranks
// have the same losses.
void StepValidator::sum_losses(const StepAttempt& attempt) {
  loss_sum_ = attempt.losses.sum().to(job_.torch_device()).view({1});
  job_.world_group().all_reduce(loss_sum_).wait();
  loss_on_host_ = std::make_shared<const HostCopy>(loss_sum_, job_.device());
}

void StepValidator::finish(StepAttempt* attempt) {
  if (attempt->counted == 0) return;
  const Numbers numbers = numbers_of(*attempt);
  const Symptom symptom = symptom_of(*attempt, numbers);
  const RerunState state = next(RerunState::start, {.symptom = symptom != Symptom::none});
  if (state == RerunState::fine) return accept(numbers);
  Finding finding;
  finding.step = number_;
  finding.symptom = symptom;
  finding.numbers = numbers;
  finding.state = state;
  *attempt = investigate({*host_batches_, rng_}, *attempt, std::move(finding));
}

// Repeats the step, and examines this rank's gradients before they are reduced.
StepValidator::Repetition StepValidator::repeat(const StepInputs& inputs, Finding* finding) {
  job_.rng().restore(inputs.rng);
  Repetition again{.attempt = run_or_replay(parts_, inputs.batches, /*defer_reduction=*/true), .local = {}};
  again.local = examine(again.attempt, finding->step);
  reduce_grads_and_norm(inputs.batches, &again.attempt);
  finding->repeated = numbers_of(again.attempt);
  again.symptom = symptom_of(again.attempt, finding->repeated) != Symptom::none;
  return again;
}

// Compares the weights of replicas and repairs damaged ones if possible.
void StepValidator::look_for_damage(Finding* finding) const {
  const std::optional<ReplicaDifference> damage = replicas_.damaged_parameters();
  const bool is_repaired = damage && replicas_.repair_parameters();
  if (damage) finding->damage = damage->text;
  if (damage && damage->culprit) finding->suspects = {*damage->culprit};
  finding->state =
      next(finding->state, {.damage = damage.has_value(), .intact = is_repaired, .replicas = job_.layout().dp() > 1});
}

StepAttempt StepValidator::investigate(const StepInputs& inputs, const StepAttempt& first, Finding finding) {
  const std::vector<RngState> after = job_.rng().save();
  Repetition last = repeat(inputs, &finding);
  const bool have_losses = first.losses.numel() > 0;
  finding.suspects =
      ranks_where(have_losses && checksums(std::vector{first.losses}) != checksums(std::vector{last.attempt.losses}));
  const bool reproducible =
      finding.suspects.empty() && have_same_bits(first.measured.grad_norm, last.attempt.measured.grad_norm);
  finding.state = next(finding.state, {.symptom = last.symptom});
  if (finding.state == RerunState::comparing) look_for_damage(&finding);
  if (finding.state == RerunState::repairing) {
    last = repeat(inputs, &finding);
    finding.state = next(finding.state, {.symptom = last.symptom, .replicas = job_.layout().dp() > 1});
  }
  finding.exchanged = finding.state == RerunState::exchanging;
  if (finding.exchanged) {
    finding.suspects = exchange(inputs, last.local, finding.step, reproducible);
    finding.state = next(finding.state, {.blames_any = !finding.suspects.empty()});
  }
  job_.rng().restore(after);
  return conclude(inputs, finding, last);
}

// Applies the verdict: stops, skips the step, or returns the attempt to use.
StepAttempt StepValidator::conclude(const StepInputs& inputs, const Finding& finding, const Repetition& last) {
  const StepDecision decision = decide_step(finding.state, finding.symptom, options_.action);
  if (decision == StepDecision::stop) {
    if (job_.rank() == 0) log_.wrong(finding.step, finding.culprit(), finding.message());
    stop(finding, last.attempt, last.local.problem);
  }
  if (job_.rank() == 0) {
    loader::log(
        CONCORD_LOG_WARN, "train",
        fmt::format("{}; {}", finding.message(),
                    decision == StepDecision::skip ? "the step is skipped" : "the run continues with the last result"));
    if (finding.state == RerunState::repaired) log_.repaired(finding.step, finding.culprit(), finding.damage);
  }
  StepAttempt result = last.attempt;
  result.skipped = decision == StepDecision::skip;
  if (result.skipped) return result;
  if (finding.exchanged) {  // the gradients belong to a different batch
    job_.rng().restore(inputs.rng);
    result = run_or_replay(parts_, inputs.batches);
    reduce_grads_and_norm(inputs.batches, &result);
  }
  accept(finding.repeated);
  return result;
}

// Returns the ranks of faulty devices, after each replica has computed the batch of the next one.
std::vector<int64_t> StepValidator::exchange(const StepInputs& own, const Local& local, int64_t number,
                                             bool reproducible) const {
  const StepInputs others = inputs_of_next_replica(job_, own);
  job_.rng().restore(others.rng);
  const Local of_next = examine(run_or_replay(parts_, others.batches, /*defer_reduction=*/true), number);
  ProcessGroup& group = job_.group(GroupKind::dp);
  const at::Tensor sent =
      at::tensor({local.result.bits, int64_t{local.result.finite}, of_next.result.bits, int64_t{of_next.result.finite}},
                 at::kLong)
          .to(job_.torch_device());
  const at::Tensor all = at::empty({group.size() * sent.numel()}, sent.options());
  group.all_gather(all, sent).wait();
  const at::Tensor on_host = all.cpu();
  const int64_t* values = on_host.const_data_ptr<int64_t>();
  std::vector<ExchangeResult> results;
  for (int64_t i = 0; i < group.size(); ++i, values += sent.numel()) {
    results.push_back({{values[0], values[1] != 0}, {values[2], values[3] != 0}});
  }
  const std::vector<int64_t> places = judge_exchange(results, reproducible);
  return ranks_where(std::find(places.begin(), places.end(), group.rank()) != places.end());
}

// Checks losses and gradients of this rank before any reduction over replicas.
StepValidator::Local StepValidator::examine(const StepAttempt& attempt, int64_t number) const {
  const at::NoGradGuard no_grad;
  parts_.data_parallel.flush_grads();
  std::vector<at::Tensor> computed;
  if (attempt.losses.numel() > 0) computed.push_back(attempt.losses);
  for (const GradBuffer* buffer : parts_.data_parallel.buffers()) computed.push_back(buffer->grads());
  const at::Tensor sums = at::tensor(checksums(computed), at::kLong);
  Local local{.result = {.bits = checksums(std::vector{sums}).at(0)}, .problem = ""};
  try {
    require_finite_losses(parts_.stages.back()->token_losses(), number, job_);
    parts_.data_parallel.require_finite_grads();
  } catch (const Error& error) {
    local.problem = error.what();
    local.result.finite = false;
  }
  return local;
}

// Returns the step's loss and gradient norm, identical on all ranks.
StepValidator::Numbers StepValidator::numbers_of(const StepAttempt& attempt) const {
  const double tokens = parts_.loss_rule.per_token ? static_cast<double>(attempt.counted) : 1;
  const double loss = loss_on_host_->wait().item<double>() / (tokens * static_cast<double>(job_.layout().tp()));
  return {loss, attempt.measured.grad_norm};
}

Symptom StepValidator::symptom_of(const StepAttempt& attempt, const Numbers& numbers) const {
  if (!std::isfinite(numbers.loss) || !attempt.measured.updated) {
    return options_.stops_on_not_finite ? Symptom::not_finite : Symptom::none;
  }
  const bool is_spike = losses_.is_spike(numbers.loss) || grad_norms_.is_spike(numbers.grad_norm);
  return is_spike ? Symptom::spike : Symptom::none;
}

void StepValidator::accept(const Numbers& numbers) {
  if (!std::isfinite(numbers.loss) || !std::isfinite(numbers.grad_norm)) return;
  losses_.add(numbers.loss);
  grad_norms_.add(numbers.grad_norm);
}

std::vector<int64_t> StepValidator::ranks_where(bool condition) const {
  at::Tensor flags = at::zeros({job_.world()}, at::kLong);
  flags.data_ptr<int64_t>()[job_.rank()] = condition;
  flags = flags.to(job_.torch_device());
  job_.world_group().all_reduce(flags).wait();
  flags = flags.cpu();
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < job_.world(); ++rank) {
    if (flags.const_data_ptr<int64_t>()[rank] != 0) ranks.push_back(rank);
  }
  return ranks;
}

// |problem| is this rank's. An inherent problem is reported with the rank, the micro-batch and the parameter, as
// without reruns.
void StepValidator::stop(const Finding& finding, const StepAttempt& attempt, const std::string& problem) const {
  Peers& peers = job_.flight().peers();
  if (finding.state == RerunState::inherent && finding.symptom == Symptom::not_finite) {
    if (const std::optional<RankText> first = first_text(job_, problem)) {
      peers.blame(first->rank);
      throw Error(CONCORD_STATUS_FAILED_PRECONDITION, first->text);
    }
    require_finite_gradient(attempt, finding.step);
  }
  if (!finding.suspects.empty()) peers.blame(finding.suspects.front());
  const char* advice =
      finding.state == RerunState::inherent ? "look at the data of this step, or try a lower learning_rate"
      : finding.suspects.empty() || !finding.damage.empty() ? "resume from the newest checkpoint"
                                                            : "run without it, and resume from the newest checkpoint";
  const std::string message = fmt::format("{}; {}", finding.message(), advice);
  if (finding.state == RerunState::persistent) throw BadDevice(CONCORD_STATUS_UNAVAILABLE, message);
  throw Error(CONCORD_STATUS_FAILED_PRECONDITION, message);
}

}  // namespace concord
