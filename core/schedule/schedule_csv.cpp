#include "core/schedule/schedule_csv.h"

#include <fmt/core.h>

#include <map>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/quoted.h"
#include "core/schedule/check.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

constexpr int64_t kMaxStages = int64_t{1} << 16;

// Splits off the text before |separator|.
std::string_view take(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view piece = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return piece;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  Schedule read(int64_t activation_limit) {
    schedule_.kind = "csv";
    read_rows();
    if (actions_ == 0)
      throw ConfigError(
          fmt::format("{}: contains no action; each line lists the actions of a rank, e.g. 0F0,0B0", name_));
    schedule_.pp = static_cast<int>(schedule_.ranks.size());
    find_sizes();
    place();
    const int64_t all = static_cast<int64_t>(schedule_.vpp) * schedule_.microbatches;
    schedule_.activation_limit.assign(schedule_.ranks.size(), activation_limit == 0 ? all : activation_limit);
    if (const std::optional<ScheduleFault> fault = find_fault(schedule_))
      refuse(fault->rank, fault->index, fault->what);
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void refuse(int rank, size_t index, std::string_view what) const {
    const auto row = static_cast<size_t>(rank);
    if (index >= columns_[row].size()) throw ConfigError(fmt::format("{}: row {}: {}", name_, rank + 1, what));
    throw ConfigError(fmt::format("{}: row {}, column {} ({}): {}", name_, rank + 1, columns_[row][index],
                                  to_string(schedule_.ranks[row][index]), what));
  }

  void read_rows() {
    std::string_view rest = text_.substr(0, text_.find_last_not_of(" \t\r\n") + 1);  // trailing empty lines
    while (!rest.empty()) {
      if (static_cast<int64_t>(schedule_.ranks.size()) == kMaxRanks) {
        throw ConfigError(
            fmt::format("{}: has more than {} lines; each line lists the actions of a rank", name_, kMaxRanks));
      }
      schedule_.ranks.emplace_back();
      columns_.emplace_back();
      read_row(take(&rest, '\n'));
    }
  }

  void read_row(std::string_view line) {
    for (int column = 1; !line.empty(); ++column) {
      std::string_view cell = trimmed(take(&line, ','));
      for (bool joined = false; !cell.empty(); joined = true) add(take(&cell, '+'), column, joined);
    }
  }

  void add(std::string_view text, int column, bool joined) {
    std::optional<Action> action = parse_action(trimmed(text));
    if (!action) {
      throw ConfigError(
          fmt::format("{}: row {}, column {}: {} is not an action; an action is e.g. 2F0 (stage, kind, micro-batch), "
                      "with kind F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, or 2REDUCE_GRAD",
                      name_, columns_.size(), column, quoted(text)));
    }
    // Three computations have up to four transfers.
    if (++actions_ > 3 * kMaxComputations) {
      throw ConfigError(fmt::format("{}: has more than {} actions", name_, 3 * kMaxComputations));
    }
    action->joined = joined;
    schedule_.ranks.back().push_back(*action);
    columns_.back().push_back(column);
  }

  // Derives the numbers of stages and micro-batches from the largest indices. The file must be long enough: each stage
  // runs a forward of each micro-batch.
  void find_sizes() {
    struct Place {
      int32_t largest = -1;
      int rank = 0;
      size_t index = 0;
    };
    Place stage;
    Place microbatch;
    for (int rank = 0; rank < schedule_.pp; ++rank) {
      const std::vector<Action>& actions = schedule_.ranks[static_cast<size_t>(rank)];
      for (size_t i = 0; i < actions.size(); ++i) {
        if (actions[i].stage > stage.largest) stage = {actions[i].stage, rank, i};
        if (actions[i].microbatch > microbatch.largest) microbatch = {actions[i].microbatch, rank, i};
      }
    }
    stages_ = int64_t{stage.largest} + 1;
    const int64_t microbatches = int64_t{microbatch.largest} + 1;
    if (stages_ > kMaxStages) {
      refuse(stage.rank, stage.index,
             fmt::format("stage {} implies {} stages; the limit is {}", stage.largest, stages_, kMaxStages));
    }
    if (stages_ > actions_) {
      refuse(stage.rank, stage.index,
             fmt::format("stage {} implies {} stages, but the file has only {} actions", stage.largest, stages_,
                         actions_));
    }
    if (microbatches > actions_ / stages_) {
      refuse(microbatch.rank, microbatch.index,
             fmt::format("micro-batch {} implies at least {} forwards ({} stages x {} micro-batches), but the file has "
                         "only {} actions",
                         microbatch.largest, stages_ * microbatches, stages_, microbatches, actions_));
    }
    schedule_.microbatches = static_cast<int>(microbatches);
  }

  // Assigns a stage to the rank with most of its actions; the checker then reports those in another row.
  void place() {
    std::map<std::pair<int, int>, int64_t> counts;  // by (stage, rank)
    for (int rank = 0; rank < schedule_.pp; ++rank) {
      for (const Action& action : schedule_.ranks[static_cast<size_t>(rank)]) ++counts[{action.stage, rank}];
    }
    schedule_.rank_of_stage.assign(static_cast<size_t>(stages_), -1);
    std::vector<int64_t> most(static_cast<size_t>(stages_), 0);
    for (const auto& [place, count] : counts) {
      const auto stage = static_cast<size_t>(place.first);
      if (count <= most[stage]) continue;
      most[stage] = count;
      schedule_.rank_of_stage[stage] = place.second;
    }
    check_even();
  }

  void check_even() {
    std::vector<int> chunks(schedule_.ranks.size(), 0);
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (schedule_.rank_of(stage) == -1) {
        throw ConfigError(
            fmt::format("{}: stage {} of the stages 0 to {} is not in any row", name_, stage, stages_ - 1));
      }
      ++chunks[static_cast<size_t>(schedule_.rank_of(stage))];
    }
    schedule_.vpp = static_cast<int>(stages_ / schedule_.pp);
    for (int rank = 0; rank < schedule_.pp; ++rank) {
      const int has = chunks[static_cast<size_t>(rank)];
      if (has == schedule_.vpp && stages_ % schedule_.pp == 0) continue;
      throw ConfigError(fmt::format("{}: row {} has {} of the {} stages; all {} rows need the same number of stages",
                                    name_, rank + 1, has, stages_, schedule_.pp));
    }
  }

  std::string_view text_;
  std::string_view name_;
  Schedule schedule_;
  std::vector<std::vector<int>> columns_;  // column of each action, starting at 1
  int64_t actions_ = 0;
  int64_t stages_ = 0;
};

}  // namespace

std::string schedule_csv(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += actions[i].joined ? '+' : ',';
      text += to_string(actions[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule parse_schedule_csv(std::string_view text, std::string_view name, int64_t activation_limit) {
  if (activation_limit < 0) {
    throw ConfigError(fmt::format("the activation limit is {}; must be >= 1, or 0 for none", activation_limit));
  }
  return Reader(text, name).read(activation_limit);
}

Schedule load_schedule_csv(const std::string& path, int64_t activation_limit) {
  const InputFile file(path, "a schedule must be a .csv file");
  return parse_schedule_csv(file.read(kMaxCsvBytes, "a schedule"), path, activation_limit);
}

}  // namespace concord
