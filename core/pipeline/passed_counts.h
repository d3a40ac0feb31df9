// Expert counts that are passed along a pipeline with a micro-batch: pooled_aux_loss (router_losses.h) needs the counts
// of all layers in the backward of each. A stage adds its own counts to those of the stages before it and sends the sum
// after the hidden values. The last stage has the total, which returns at the same position in the gradients. So a
// message is a single tensor of the model's type: a count is sent as digits to the base 128, which every type
// represents.
//
// A stage creates one object per micro-batch: |received| (not on the first stage), forward, which returns a
// RouterRecord, |add|, and |sent| (not on the last stage). The backward of |sent| completes the record before any of
// the stage's layers is differentiated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/models/layers/router_record.h"

namespace concord {

class PassedCounts {
 public:
  explicit PassedCounts(int64_t experts);

  // Elements of a message with |hidden| values.
  static int64_t size(int64_t hidden, int64_t experts);
  // The hidden values of |message|, of |shape|.
  at::Tensor received(const at::Tensor& message, const std::vector<int64_t>& shape);
  // The stage's own; null if nothing was recorded, as in evaluation. On the last stage |record| is complete then.
  void add(const std::shared_ptr<RouterRecord>& record, bool is_last);
  // The message with |hidden|.
  at::Tensor sent(const at::Tensor& hidden) const;

 private:
  int64_t experts_;
  at::Tensor counts_;                  // fp32 [1, experts]: counts of the stages so far; undefined: none
  std::shared_ptr<at::Tensor> total_;  // counts of all stages, set in backward
  std::shared_ptr<RouterRecord> record_;
};

}  // namespace concord
