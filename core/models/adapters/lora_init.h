// LoRA initialisation from the base weights, peft's init_lora_weights. At the start the model computes the same as
// without the adapter: W = R + scale B0 A0, and R takes the place of W.
//   pissa          the largest singular values: A0 = sqrt(S / scale) V^T, B0 = U sqrt(S / scale)       Meng 2024
//   pissa_niter_N  like pissa, by N iterations of a random subspace (Halko 2011), which is faster
//   olora          the first columns of Q and rows of R in W = Q R                                    Buyukakyuz 2024
//
// Saved adapters refer to W, not R: files store [A; A0] and [B, -B0], a plain LoRA of twice the rank (peft's
// path_initial_model_for_weight_conversion). Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "core/mesh/parallel_context.h"
#include "core/models/adapters/adapter_config.h"
#include "core/parallel/parameter.h"

namespace concord {

struct PairValues {
  at::Tensor a_ri, b_or;
};
// Computes the initial A and B from |weight| [out, in] on the host, in fp32. |init| is one of the above; results depend
// only on |seed| and the arguments. Throws ConfigError, with the sizes, if the rank exceeds both dimensions of the
// weight.
PairValues pair_from_weight(const at::Tensor& weight, const std::string& init, LowRankShape shape, uint64_t seed);

class LoraInit {
 public:
  // Sets A and B among |parameters|, which are those of this rank's chunks, and subtracts scale B0 A0 from the weights.
  // Every rank calls it: each rank of a stage computes some of its modules and broadcasts them to the others. Waits:
  // for the ranks of the stage.
  void compute(std::span<Parameter* const> parameters, const AdapterModules& adapter, ParallelContext& context,
               int64_t seed);

  // Returns A or B in its form for files, of twice the rank. room_for() allocates it uninitialised.
  Parameter in_file(const Parameter& own) const;
  static Parameter room_for(const Parameter& own);
  // Sets |own| from |read|, a room_for(own) with values. The first call also sets the initial values; call subtract()
  // after all parameters are set.
  void take(const Parameter& read, Parameter& own);
  bool is_known() const { return !values_.empty(); }
  // Subtracts the initial scale B0 A0 from the weights. Call only once.
  void subtract(std::span<Parameter* const> parameters, const AdapterModules& adapter, const ShardPlace& place);

 private:
  std::map<const Parameter*, at::Tensor> values_;  // initial values of this rank's part of A and B
};

}  // namespace concord
