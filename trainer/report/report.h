// All output of a training run: the progress on the terminal, output_dir/metrics.jsonl, trainer_state.json, TensorBoard
// events in output_dir/runs, the summary at the end and report.html. Independent of libtorch.
//
// There is one TrainingReport per job, on rank 0 (with save_on_each_node also on the first rank of every machine). Its
// calls are cheap compared with a step: a line is written to each file. The page and the state are generated from these
// lines on request, and no line is kept in memory. Throws std::runtime_error with the file and the system's message
// (disk full, no permission); a line is written completely or not at all. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/flops.h"
#include "trainer/report/history.h"
#include "trainer/report/progress.h"
#include "trainer/report/tracker.h"

namespace concord {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

// One logged step. Values that cover several steps (logging_steps > 1) cover those since the last report.
struct StepReport {
  int64_t step = 0;  // number of updates, starting at 1
  double epoch = 0;
  double loss = 0;           // mean over the covered steps
  double learning_rate = 0;  // of this step's update
  std::optional<double> grad_norm = std::nullopt;
  int64_t skipped = 0;         // number of covered steps without an update: a gradient was NaN or Inf
  double next_loss_scale = 0;  // fp16 loss scale of the next steps; 0: none
  int64_t tokens = 0;          // in the covered steps, over all ranks
  int64_t samples = 0;         // in the covered steps, over all ranks; 0: not counted
  double seconds = 0;          // duration of the covered steps
  // Sum of the squared lengths of the covered sequences, for the FLOPs of attention; 0: tokens * seq_length.
  double squared_lengths = 0;
  int64_t patches = 0;                            // patches of images in the covered steps, over all ranks
  double squared_patches = 0;                     // sum over the images
  int64_t memory_bytes = 0;                       // peak memory of this device so far; 0: unknown
  std::optional<RankTable> ranks = std::nullopt;  // times of all ranks; nullopt: not measured
  NamedValues extra = {};                         // additional values: loss_scale, num_zeros_in_grad, skipped_iter, ...
};

// The steps after the last logged one.
struct RecentSteps {
  int64_t steps = 0;
  double loss = 0;     // loss of the last step; NaN: unknown
  int64_t tokens = 0;  // over all ranks
  double seconds = 0;
};

struct EvalReport {
  int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  int64_t tokens = 0;
  double seconds = 0;
  NamedValues extra = {};
  NamedTexts samples = {};  // prompts and their completions by the model
};

// The best evaluation so far, with the same fields as in HF.
struct BestResult {
  std::optional<double> metric = std::nullopt;  // nullopt: nothing was compared yet
  int64_t step = 0;                             // step of that evaluation
  std::string checkpoint = {};                  // the best saved checkpoint; empty: none
  bool operator==(const BestResult&) const = default;
};

// The constants of a run.
struct RunDescription {
  std::string output_dir = {};
  std::string title = "Training";
  std::string run_name = {};  // name in tracking services
  int64_t max_steps = 0;
  double num_train_epochs = 0;
  int64_t logging_steps = 1;
  int64_t save_steps = 0;
  int64_t eval_steps = 0;
  int64_t train_batch_size = 0;  // per_device_train_batch_size
  int64_t world_size = 1;
  NamedTexts configuration = {};       // arguments as printed, for the page
  std::set<std::string> changed = {};  // names in |configuration| whose values are not the defaults
  int64_t parameters = 0;              // of the model; 0: unknown
  int64_t trained_parameters = 0;
  NamedTexts opening = {};  // first lines of output about the run: {"steps", "400, 819k tokens"}
  NamedTexts layout = {};   // "tensor parallel": "2", device, plugin, ...: for the page and the summary
  std::optional<double> loss_floor = std::nullopt;  // lower bound of the loss, drawn if known
  // For MFU; omitted if the model or the device's peak is unknown.
  std::optional<TransformerShape> shape = std::nullopt;
  TowerShape tower = {};
  double peak_flops = 0;  // peak of one device in the training dtype
  // The step at which a resumed run starts. Lines of later steps, left by the previous run, are removed from the files.
  int64_t first_step = 0;
  int64_t first_tokens = 0;  // 0: read from the files
  ProgressMode progress = ProgressMode::automatic;
  bool tensorboard = true;
  bool html = true;
  int terminal = 1;                    // file descriptor for the progress and the summary
  std::function<double()> clock = {};  // seconds since 1970; empty: the system clock
};

struct FinishReport {
  std::string reason = "finished";     // "finished", "stopped by SIGTERM after step 12"
  NamedTexts files = {};               // additional paths for the summary: {"model", "out/model"}
  std::vector<std::string> next = {};  // suggested next commands, one line each
  RecentSteps unlogged = {};           // steps after the last logged one
};

class TrainingReport {
 public:
  // Creates output_dir if it does not exist and opens the files.
  explicit TrainingReport(const RunDescription& run, std::vector<std::unique_ptr<Tracker>> trackers = {});
  ~TrainingReport();  // ends the line on the terminal; writes nothing else
  TrainingReport(const TrainingReport&) = delete;
  TrainingReport& operator=(const TrainingReport&) = delete;

  // Prints |opening| of the description and starts the trackers. Call before the first step.
  void begin();
  // Call after every step, logged or not: redraws the line on the terminal, at most ten times a second, and sets
  // global_step of the state. Plain output prints nothing. Returns whether the line shows no values, or values that are
  // older than a second: then call on_recent.
  bool on_progress(int64_t step);
  // Shows loss, tokens/s and time left on the line of the terminal, without a log line. Call after on_progress.
  void on_recent(const RecentSteps& recent);
  void on_step(const StepReport& report);
  void on_eval(const EvalReport& report);
  // Prints a line of text above the progress line.
  void note(const std::string& text);

  // Sets the best result for the state.
  void set_best(const BestResult& best);

  // Returns trainer_state.json for the steps logged so far.
  std::string state_json() const;

  // Writes the state, the page and the summary. Nothing is reported afterwards.
  void finish(const FinishReport& report);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace concord
