#include "core/checkpoint/read/state_index.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {
namespace {

// Calls visitor(global begin, local begin, count) for the contiguous rows of a run.
template <class Visitor>
void each_row(const ShardRun& run, Visitor&& visitor) {
  for (int64_t done = 0; done < run.count; done += run.run_length) {
    visitor(run.offset + done / run.run_length * run.run_stride, run.local + done,
            std::min(run.run_length, run.count - done));
  }
}

}  // namespace

StateIndex::StateIndex(const std::vector<OptimizerState>& states) {
  if (states.empty()) throw ConfigError("no optimizer state was given");
  steps_ = states.front().steps;
  for (const OptimizerState& state : states) {
    if (state.steps != steps_) {
      throw ConfigError(
          fmt::format("optimizer states of different steps, {} and {}: they are not from the same checkpoint", steps_,
                      state.steps));
    }
    for (const OptimizerState::Entry& entry : state.entries) {
      if (entry.values.scalar_type() != at::kFloat || !entry.values.is_cpu() || !entry.values.is_contiguous()) {
        throw ConfigError(
            fmt::format("the optimizer state {} has values that are not flat fp32 tensors on the host", entry.key));
      }
      const float* data = entry.values.const_data_ptr<float>();
      for (const ShardRun& run : entry.runs) {
        std::vector<Row>& rows = rows_[{entry.key, run.tensor}];
        each_row(run,
                 [&](int64_t begin, int64_t local, int64_t count) { rows.push_back({begin, count, data + local}); });
      }
    }
  }
  for (auto& [address, rows] : rows_) {
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.begin < b.begin; });
  }
}

void StateIndex::read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const {
  float* to = values.data_ptr<float>();
  for (const ShardRun& run : runs) {
    static const std::vector<Row> kNone;
    const auto found = rows_.find({key, run.tensor});
    const std::vector<Row>& rows = found == rows_.end() ? kNone : found->second;
    int64_t missing = 0;
    each_row(run, [&](int64_t begin, int64_t local, int64_t count) {
      int64_t at = begin;
      const auto before = [](int64_t index, const Row& row) { return index < row.begin; };
      auto row = std::upper_bound(rows.begin(), rows.end(), at, before);
      if (row != rows.begin()) --row;
      for (; at < begin + count && row != rows.end() && row->begin <= at; ++row) {
        const int64_t taken = std::min(row->begin + row->count, begin + count) - at;
        if (taken <= 0) continue;
        std::copy_n(row->data + (at - row->begin), taken, to + local + (at - begin));
        at += taken;
      }
      missing += begin + count - at;
    });
    if (missing > 0) {
      throw ConfigError(
          fmt::format("the optimizer state has no {} for {} of {} elements of {} from index {}; pass the states of all "
                      "ranks that saved it",
                      key, missing, run.count, run.tensor, run.offset));
    }
  }
}

}  // namespace concord
