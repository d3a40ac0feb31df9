// Transfers between this rank and the others of its pipeline: batches of sends and receives, in the order in which they
// are posted, in parallel with the computations.
//
// If shapes are exchanged, an activation is preceded by its shape, in a separate batch in the same order. A batch that
// receives then comes in two parts: the shapes are posted immediately, the values when the shapes have arrived, which
// is handled when a value is taken or the next batch is posted. The transfers keep the order of the schedule, each in
// two steps, so they complete if the schedule does. Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/pipeline/stage.h"

namespace concord {

// A value for this rank: in flight, or received.
struct Incoming {
  at::Tensor value;
  Work arrival;
};

// One transfer of a batch.
struct PipelineTransfer {
  int64_t peer = 0;                    // rank of the pipeline
  bool activation = true;              // its shape is sent ahead where shapes are exchanged; not that of a gradient
  at::Tensor value = {};               // what is sent
  Incoming* into = nullptr;            // or where it is received
  std::optional<ValueSpec> spec = {};  // spec of the received value; nullopt if its shape is sent ahead
};

class PipelineTransfers {
 public:
  PipelineTransfers(ProcessGroup& group, at::Device device, bool exchange_shapes)
      : group_(group), device_(device), exchange_shapes_(exchange_shapes) {}

  // Never waits for the transfers of |batch|. Waits: for the shapes of the batch before.
  void post(std::vector<PipelineTransfer> batch);
  // The value, for the current stream. Waits: as Work::wait, and for its shape.
  at::Tensor take(Incoming& incoming);
  // The current stream comes after all transfers.
  void finish();

 private:
  void post_shapes();
  void receive_shapes();
  void post_values();
  void complete();

  ProcessGroup& group_;
  at::Device device_;
  bool exchange_shapes_;
  std::vector<PipelineTransfer> batch_;  // whose shapes are in flight, and whose values are not posted
  std::vector<at::Tensor> shapes_;       // shapes that batch_ receives, in order
  Work shapes_arrival_;
  Work last_;
};

}  // namespace concord
