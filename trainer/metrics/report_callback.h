// Reports a run (trainer/report) to the terminal, files and trackers, as a callback of rank 0. With save_on_each_node
// the first rank of every other machine also has one, which writes files only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/build.h"
#include "trainer/callbacks.h"

namespace concord {

class ReportCallback : public TrainerCallback {
 public:
  // |terminal| is the file descriptor for the progress; |notes| are printed below the first lines; |trackers| are the
  // services to report to. Writes training_args.yaml into the output folder.
  ReportCallback(const TrainingPlan& plan, ParallelContext& job, int64_t first_step, int terminal,
                 std::vector<std::string> notes, std::vector<std::unique_ptr<Tracker>> trackers);

  void on_train_begin(const TrainingArguments& arguments, const TrainerState& state, TrainerControl& control) override;
  void on_train_end(const TrainerState& state, const FinishReport& report) override;
  void on_step_end(const TrainerState& state, TrainerControl& control) override;
  void on_log(const TrainerState& state, const StepReport& report, TrainerControl& control) override;
  void on_progress(const TrainerState& state, const RecentSteps& recent) override;
  void on_evaluate(const TrainerState& state, const EvalReport& report, TrainerControl& control) override;
  NamedTexts checkpoint_files(const TrainerState& state) override;

 private:
  TrainingReport report_;
  std::vector<std::string> notes_;
};

}  // namespace concord
