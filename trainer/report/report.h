// Everything that a person or a script sees of a training run: the progress on the terminal, output_dir/metrics.jsonl,
// trainer_state.json, TensorBoard events in output_dir/runs, the summary at the end and report.html. No libtorch.
//
// One TrainingReport per job, on the rank that reports (0, and of every machine the first
// with save_on_each_node); the other ranks have none. Its calls are cheap compared
// with a step: a line is written to each file. The page and the state are made from these lines on request, and
// no line is kept in memory. Errors: std::runtime_error with
// the file and the system's message (disk full, no permission); a line is written whole or not at all. Threads:
// one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/flops.h"
#include "trainer/report/history.h"
#include "trainer/report/progress.h"
#include "trainer/report/tracker.h"

namespace concord {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// One logged step. What covers several steps (logging_steps > 1) covers those since the last report.
struct StepReport {
  int64_t step = 0;  // updates done, counted from 1
  double epoch = 0;
  double loss = 0;           // mean over the steps covered
  double learning_rate = 0;  // of this step's update
  std::optional<double> grad_norm = std::nullopt;
  int64_t skipped = 0;         // of the steps covered, those without an update: a gradient was NaN or Inf
  double next_loss_scale = 0;  // fp16's, of the steps to come; 0: there is none
  int64_t tokens = 0;          // of the steps covered, over all ranks
  int64_t samples = 0;         // the same; 0: not counted
  double seconds = 0;          // the same
  // Sum of the squared lengths of the sequences covered, for the FLOPs of attention; 0: tokens * seq_length.
  double squared_lengths = 0;
  int64_t memory_bytes = 0;                       // the most this device held so far; 0: not known
  std::optional<RankTable> ranks = std::nullopt;  // what all ranks spent their time on; none: not measured
  NamedValues extra = {};                         // more to log: loss_scale, num_zeros_in_grad, skipped_iter, ...
};

struct EvalReport {
  int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  int64_t tokens = 0;
  double seconds = 0;
  NamedValues extra = {};
  NamedTexts samples = {};  // prompts and how the model continues them
};

// The best evaluation so far, with HF's meaning of its parts.
struct BestResult {
  std::optional<double> metric = std::nullopt;  // none: nothing was compared yet
  int64_t step = 0;                             // of that evaluation
  std::string checkpoint = {};                  // the best one that is saved; empty: none
  bool operator==(const BestResult&) const = default;
};

// What does not change during a run.
struct RunDescription {
  std::string output_dir = {};
  std::string title = "Training";
  std::string run_name = {};  // at services
  int64_t max_steps = 0;
  double num_train_epochs = 0;
  int64_t logging_steps = 1;
  int64_t save_steps = 0;
  int64_t eval_steps = 0;
  int64_t train_batch_size = 0;  // per_device_train_batch_size
  int64_t world_size = 1;
  NamedTexts configuration = {};  // arguments as they were printed back, for the page
  NamedTexts opening = {};        // what the run is about to do, for its first lines: {"steps", "400, 819k tokens"}
  NamedTexts layout = {};         // "tensor parallel": "2", device, plugin, ...: for the page and the summary
  std::optional<double> loss_floor = std::nullopt;  // the lowest possible loss, drawn if known
  // For MFU; omitted if the model or the device's peak is not known.
  std::optional<TransformerShape> shape = std::nullopt;
  double peak_flops = 0;  // of one device, in the type trained in
  // Where a resumed run starts. Lines of later steps, left by the run that ended, are dropped from the files.
  int64_t first_step = 0;
  int64_t first_tokens = 0;  // 0: as the files say
  ProgressMode progress = ProgressMode::automatic;
  bool tensorboard = true;
  bool html = true;
  int terminal = 1;                    // file descriptor of the progress and the summary
  std::function<double()> clock = {};  // seconds since 1970; empty: the system's
};

struct FinishReport {
  std::string reason = "finished";     // "finished", "stopped by SIGTERM after step 12"
  NamedTexts files = {};               // more places to name in the summary: {"model", "out/model"}
  std::vector<std::string> next = {};  // what to try next, a line each
};

class TrainingReport {
 public:
  // Creates output_dir if it does not exist and opens the files.
  explicit TrainingReport(const RunDescription& run, std::vector<std::unique_ptr<Tracker>> trackers = {});
  ~TrainingReport();  // ends the line on the terminal; writes nothing else
  TrainingReport(const TrainingReport&) = delete;
  TrainingReport& operator=(const TrainingReport&) = delete;

  // What is about to happen, from |opening| of the description, and the trackers. Before the first step.
  void begin();
  // After every step, logged or not: moves the line on the terminal, ten times a second at most, and sets global_step
  // of the state. Plain output prints nothing.
  void on_progress(int64_t step);
  void on_step(const StepReport& report);
  void on_eval(const EvalReport& report);
  // A line of text above the progress, which stays whole.
  void note(const std::string& text);

  // For the state; none before.
  void set_best(const BestResult& best);

  // trainer_state.json of what was logged so far.
  std::string state_json() const;

  // The state, the page and the summary. Nothing is reported after it.
  void finish(const FinishReport& report);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace concord
