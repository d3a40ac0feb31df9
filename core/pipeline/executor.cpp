#include "core/pipeline/executor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "core/pipeline/stage_run.h"
#include "core/pipeline/transfers.h"
#include "core/schedule/check.h"
#include "core/schedule/progress.h"
#include "core/schedule/schedule_csv.h"

namespace concord {
namespace {

constexpr const char* kRecorded = "pipeline";  // name of the actions in the flight recorder

void check_sizes(const Schedule& schedule, size_t stages, const ProcessGroup& pp) {
  if (schedule.pp != pp.size()) {
    throw ConfigError(
        fmt::format("schedule {} is for {} ranks, but the job's pipeline_model_parallel_size is {}; they must be equal",
                    schedule.kind, schedule.pp, pp.size()));
  }
  if (static_cast<int64_t>(stages) != schedule.vpp) {
    throw ConfigError(
        fmt::format("schedule {} has {} chunks per rank, but the model has {} on this rank; they must be equal",
                    schedule.kind, schedule.vpp, stages));
  }
  const bool reduces = has_reductions(schedule) || is_forward_only(schedule);
  if ((schedule.pp > 1 && !has_transfers(schedule)) || !reduces) {
    throw ConfigError(
        fmt::format("schedule {} has only computations; complete it (passes.h) before running it", schedule.kind));
  }
}

// All ranks of the pipeline must walk the same plan.
void check_same(const Schedule& schedule, const ExecutorOptions& options, ParallelContext& job, ProcessGroup& pp) {
  if (pp.size() == 1) return;
  const uint64_t hash = stable_hash(schedule_csv(schedule) + (options.variable_seq_lengths ? "variable" : ""));
  const auto long_options = at::TensorOptions(job.torch_device()).dtype(at::kLong);
  const at::Tensor all = at::empty({pp.size()}, long_options);
  pp.all_gather(all, at::full({1}, static_cast<int64_t>(hash), long_options)).wait();
  const at::Tensor host = all.to(at::kCPU);
  for (int64_t rank = 0; rank < pp.size(); ++rank) {
    if (host.const_data_ptr<int64_t>()[rank] == static_cast<int64_t>(hash)) continue;
    throw ConfigError(
        fmt::format("rank {} of the pipeline has a different schedule than rank {} ({}, {} micro-batches); all ranks "
                    "need the same arguments and the same schedule file",
                    pp.ranks()[rank], pp.ranks()[pp.rank()], schedule.kind, schedule.microbatches));
  }
}

// Stages know where to defer weight gradients to for the duration of a run.
class Deferral {
 public:
  explicit Deferral(std::deque<StageRun>& runs) : runs_(runs) {
    for (StageRun& run : runs_) run.begin();
  }
  ~Deferral() {
    for (StageRun& run : runs_) run.end();
  }
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

 private:
  std::deque<StageRun>& runs_;
};

class Watched {
 public:
  Watched(const ActionWatch& watch, const Action& action) : watch_(watch), action_(action) {
    if (watch_) watch_(action_, true);
  }
  ~Watched() {
    try {
      if (watch_) watch_(action_, false);
    } catch (...) {
    }  // the device no longer works; the next call to it throws the same error
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  const ActionWatch& watch_;
  const Action& action_;
};

std::string words_of(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) return torch->what_without_backtrace();
  return error.what();
}

}  // namespace

struct Executor::Implementation {
  Implementation(Schedule given, std::vector<Stage*> given_stages, ParallelContext& context,
                 const ExecutorOptions& given_options)
      : schedule(std::move(given)),
        job(context),
        pp(context.group(GroupKind::pp)),
        options(given_options),
        transfers(pp, context.torch_device(), given_options.variable_seq_lengths) {
    check_schedule(schedule);
    check_sizes(schedule, given_stages.size(), pp);
    check_same(schedule, options, job, pp);
    make_stages(given_stages);
    activations.resize(schedule.slots());
    gradients.resize(schedule.slots());
    outputs.resize(schedule.slots());
    input_grads.resize(schedule.slots());
  }

  int rank() const { return static_cast<int>(pp.rank()); }
  const std::vector<Action>& actions() const { return schedule.ranks[static_cast<size_t>(rank())]; }
  bool is_last(int stage) const { return stage == schedule.stages() - 1; }
  StageRun& run_of(const Action& action) { return *runs[static_cast<size_t>(action.stage)]; }

  void make_stages(const std::vector<Stage*>& stages);
  void run();
  size_t step(size_t index);
  void compute(const Action& action);
  void forward(const Action& action);
  void backward(const Action& action);
  at::Tensor taken(std::vector<Incoming>& values, const Action& action);
  void deliver(const Action& action, int to, at::Tensor value, std::vector<Incoming>& here,
               std::vector<at::Tensor>& elsewhere);
  size_t communicate(size_t begin);
  PipelineTransfer transfer_of(const Action& action);
  void begin_entry(size_t index);
  std::string explain(size_t index, const std::string& what, bool what_first = false);
  std::string where_all_stand(const std::string& what);

  const Schedule schedule;
  ParallelContext& job;
  ProcessGroup& pp;
  const ExecutorOptions options;
  PipelineTransfers transfers;
  DeferredWgrads deferred;  // of the current backward
  std::deque<StageRun> storage;
  std::vector<StageRun*> runs;          // by stage; null for those of other ranks
  std::vector<Incoming> activations;    // inputs of (stage, micro-batch), by Schedule::slot
  std::vector<Incoming> gradients;      // gradients of outputs
  std::vector<at::Tensor> outputs;      // to be sent
  std::vector<at::Tensor> input_grads;  // to be sent
  int64_t steps = 0;                    // passes over the list so far
  ActionWatch watch;                    // empty: none
  std::optional<uint64_t> entry;        // flight recorder entry of the current action
  bool failed = false;
};

void Executor::Implementation::make_stages(const std::vector<Stage*>& stages) {
  runs.resize(static_cast<size_t>(schedule.stages()));
  const bool splits = std::any_of(actions().begin(), actions().end(),
                                  [](const Action& each) { return each.kind == ActionKind::weight_grad; });
  const std::vector<int> mine = stages_of(schedule, rank());
  for (size_t chunk = 0; chunk < mine.size(); ++chunk) {
    const int stage = mine[chunk];
    const StageRun::Options how{.microbatches = schedule.microbatches,
                                .first = stage == 0,
                                .last = is_last(stage),
                                .differentiates = !is_forward_only(schedule),
                                .later = splits ? &deferred : nullptr};
    runs[static_cast<size_t>(stage)] = &storage.emplace_back(*stages[chunk], how);
  }
}

// --------------------------------------------------------------------------------------------------------- computing

// The value that |action| needs from the previous or next stage; undefined at the ends of the model.
at::Tensor Executor::Implementation::taken(std::vector<Incoming>& values, const Action& action) {
  if (!producer_of(schedule, action)) return {};
  return transfers.take(values[schedule.slot(action)]);
}

// Gives |value| of |action| to stage |to|: immediately if it is on this rank, otherwise it waits to be sent.
void Executor::Implementation::deliver(const Action& action, int to, at::Tensor value, std::vector<Incoming>& here,
                                       std::vector<at::Tensor>& elsewhere) {
  if (to < 0 || to >= schedule.stages()) return;
  if (!schedule.on_one_rank(action.stage, to)) {
    elsewhere[schedule.slot(action)] = std::move(value);
    return;
  }
  Action consumer = action;
  consumer.stage = to;
  here[schedule.slot(consumer)].value = std::move(value);
}

void Executor::Implementation::forward(const Action& action) {
  at::Tensor input = taken(activations, action);
  if (entry) job.flight_recorder().mark(*entry, CallState::started);
  const Watched watched(watch, action);
  at::Tensor output = run_of(action).forward(action.microbatch, std::move(input));
  deliver(action, action.stage + 1, std::move(output), activations, outputs);
}

void Executor::Implementation::backward(const Action& action) {
  StageRun& run = run_of(action);
  at::Tensor grad = taken(gradients, action);
  if (entry) job.flight_recorder().mark(*entry, CallState::started);
  const Watched watched(watch, action);
  at::Tensor input_grad = run.input_grad(action.microbatch, std::move(grad));
  deliver(action, action.stage - 1, std::move(input_grad), gradients, input_grads);
  if (action.kind == ActionKind::backward) run.weight_grad(action.microbatch);
}

void Executor::Implementation::compute(const Action& action) {
  switch (action.kind) {
    case ActionKind::forward: return forward(action);
    case ActionKind::backward:
    case ActionKind::input_grad: return backward(action);
    case ActionKind::weight_grad: {
      const Watched watched(watch, action);
      return run_of(action).weight_grad(action.microbatch);
    }
    case ActionKind::reduce_gradients: return run_of(action).stage().reduce_gradients();
    default: throw Error(CONCORD_STATUS_INTERNAL, fmt::format("action {} is not a computation", to_string(action)));
  }
}

// ----------------------------------------------------------------------------------------------------- communicating

PipelineTransfer Executor::Implementation::transfer_of(const Action& action) {
  const size_t slot = schedule.slot(action);
  PipelineTransfer transfer{.peer = schedule.rank_of(peer_stage(action))};
  switch (action.kind) {
    case ActionKind::send_activation: transfer.value = std::move(outputs[slot]); break;
    case ActionKind::send_gradient: transfer.value = std::move(input_grads[slot]); break;
    case ActionKind::recv_activation: transfer.into = &activations[slot]; break;
    default: transfer.into = &gradients[slot];
  }
  transfer.activation = action.kind == ActionKind::send_activation || action.kind == ActionKind::recv_activation;
  if (action.kind == ActionKind::recv_gradient) transfer.spec = run_of(action).output_spec(action.microbatch);
  if (action.kind == ActionKind::recv_activation && !options.variable_seq_lengths) {
    transfer.spec = run_of(action).stage().input_spec(action.microbatch);
  }
  return transfer;
}

// Posts the batch that begins at |begin|; returns its end.
size_t Executor::Implementation::communicate(size_t begin) {
  std::vector<PipelineTransfer> batch;
  size_t end = begin;
  do batch.push_back(transfer_of(actions()[end++]));
  while (end < actions().size() && actions()[end].joined);
  transfers.post(std::move(batch));
  return end;
}

// ----------------------------------------------------------------------------------------------------------- walking

// Runs the action at |index|, or the batch that begins there; returns the next index.
size_t Executor::Implementation::step(size_t index) {
  if (is_transfer(actions()[index].kind)) return communicate(index);
  begin_entry(index);
  compute(actions()[index]);
  if (entry) job.flight_recorder().mark(*std::exchange(entry, std::nullopt), CallState::done);
  return index + 1;
}

// Such an error begins with the rank that caused it, and not with the position of this one.
static bool is_of_a_peer(concord_status status) {
  return status == CONCORD_STATUS_PEER_LOST || status == CONCORD_STATUS_TIMEOUT;
}

void Executor::Implementation::run() {
  if (failed && pp.size() > 1) {
    throw Error(CONCORD_STATUS_FAILED_PRECONDITION, "this pipeline has already failed; the job cannot continue");
  }
  failed = true;  // until it has finished
  const Deferral deferral(storage);
  size_t index = 0;
  try {
    while (index < actions().size()) index = step(index);
    transfers.finish();
    ++steps;
    failed = false;
  } catch (const Error& error) {
    std::throw_with_nested(Error(error.status(), explain(index, error.what(), is_of_a_peer(error.status()))));
  } catch (const ConfigError& error) {
    std::throw_with_nested(ConfigError(explain(index, error.what())));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(CONCORD_STATUS_INTERNAL, explain(index, words_of(error))));
  }
}

// ---------------------------------------------------------------------------------------------------------- failures

// Records where this rank is, for others that ask. Transfers are calls of their group, which records them itself.
void Executor::Implementation::begin_entry(size_t index) {
  if (pp.size() == 1) return;
  CallSignature signature;
  signature.action = to_string(actions()[index]);
  const auto length = static_cast<int64_t>(actions().size());
  entry =
      job.flight_recorder().record(kRecorded, steps * length + static_cast<int64_t>(index) + 1, std::move(signature));
}

std::string Executor::Implementation::explain(size_t index, const std::string& what, bool what_first) {
  const std::string at = index < actions().size() ? fmt::format("action {} of {} ({})", index + 1, actions().size(),
                                                                to_string(actions()[index]))
                                                  : fmt::format("the end of its {} actions", actions().size());
  const std::string place = fmt::format("pipeline {}, rank {}, {}", schedule.kind, rank(), at);
  const std::string message = what_first ? fmt::format("{}; {}", what, place) : fmt::format("{}: {}", place, what);
  return message + where_all_stand(message);
}

// The position of a rank according to its records: |made| is the number of its latest computation over all runs.
static std::optional<ListPosition> position_in(const std::vector<Action>& actions, const MemberPosition& member) {
  if (!member.position) return std::nullopt;
  if (member.position->made == 0) return ListPosition{};
  const bool done = member.position->finished >= member.position->made;
  const auto index = static_cast<size_t>((member.position->made - 1) % static_cast<int64_t>(actions.size()));
  return ListPosition{index + (done ? 1 : 0), !done && member.position->next_state == CallState::queued};
}

std::string Executor::Implementation::where_all_stand(const std::string& what) {
  if (pp.size() == 1) return "";
  try {
    const auto members = job.flight().positions_of({kRecorded, kRecorded, pp.ranks(), false}, what);
    std::vector<std::optional<ListPosition>> positions;
    std::vector<int64_t> world_ranks;
    for (size_t i = 0; i < members.size(); ++i) {
      positions.push_back(position_in(schedule.ranks[i], members[i]));
      world_ranks.push_back(members[i].rank);
    }
    return "\npositions of the pipeline ranks:" + describe_positions(schedule, positions, world_ranks);
  } catch (const std::exception& error) {
    return fmt::format("\nthe positions of the other ranks are not available: {}", error.what());
  }
}

// --------------------------------------------------------------------------------------------------------------------

Executor::Executor(Schedule schedule, std::vector<Stage*> stages, ParallelContext& job, const ExecutorOptions& options)
    : implementation_(std::make_unique<Implementation>(std::move(schedule), std::move(stages), job, options)) {}

Executor::~Executor() = default;

const Schedule& Executor::schedule() const { return implementation_->schedule; }

void Executor::run() { implementation_->run(); }

void Executor::watch(ActionWatch watch) { implementation_->watch = std::move(watch); }

}  // namespace concord
