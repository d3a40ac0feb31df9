// One forward, and backward, of a model on a given batch under any layout, with the results of all ranks combined into
// what a single process would have: how layouts, vendors and implementations are compared.
#pragma once

#include <map>
#include <string>

#include "core/models/auto_model.h"
#include "trainer/probe_arguments.h"

namespace concord {

// By name, on the host of rank 0; empty on the other ranks:
//   logits            fp32 [B, S, V] without padding
//   loss              fp32 [1], mean over the counted tokens
//   per_token_loss    fp32 [B, S], at the token that predicts; 0 if there is no label
//   grad.NAME         for each HF parameter, in its global shape; fp32 (fp64 for Double). With an adapter for its
//                     tensors instead, by peft's names
//   activation.K.PART [B, S, H], K is the index of the part, from 000000: embedding, layers.0, ..., norm
//   weight.NAME       for each HF parameter, as the model holds it
using ProbeResult = std::map<std::string, at::Tensor>;

// Runs forward, and backward if asked for, and returns the results. |batch| is the global batch, identical on all
// ranks; without input_ids only weights are returned. Labels are those of MicroBatch; data-parallel ranks take equal
// numbers of rows. Every rank calls it. Leaves no gradients. Waits: for all ranks. Throws ConfigError for a batch that
// cannot be split evenly.
ProbeResult probe(VirtualModels& models, const MicroBatch& batch, const ProbeOptions& options,
                  ParallelContext& context);

}  // namespace concord
