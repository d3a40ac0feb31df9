// Finds values of an OptimizerState by their global address, from any rank of any layout.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/read/optimizer_state.h"

namespace concord {

class StateIndex : public StateSource {
 public:
  // |states| must outlive this object. Throws ConfigError if their steps differ, if there are none, or if values are
  // not flat fp32 on the host.
  explicit StateIndex(const std::vector<OptimizerState>& states);

  int64_t steps() const override { return steps_; }
  // Throws ConfigError with the tensor and the number of elements that no state has.
  void read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const override;

 private:
  struct Row {
    int64_t begin;  // global index
    int64_t count;
    const float* data;
  };

  int64_t steps_ = 0;
  std::map<std::pair<std::string, std::string>, std::vector<Row>> rows_;  // by key and tensor; sorted by |begin|
};

}  // namespace concord
