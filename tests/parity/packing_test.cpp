// Packed sequences compared with transformers, which ran each of them alone.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "tests/parity/hf_golden.h"

namespace concord::tests {
namespace {

std::vector<int64_t> boundaries(const TensorMap& expected) {
  const at::Tensor given = expected.at("cu_seqlens").to(at::kLong);
  return {given.const_data_ptr<int64_t>(), given.const_data_ptr<int64_t>() + given.numel()};
}

// The concatenated sequences, each padded to a multiple of |multiple| with tokens without labels.
struct Packed {
  MicroBatch batch;
  at::Tensor kept;  // indices of the real tokens
};

Packed packed(const TensorMap& expected, int64_t multiple, bool with_positions) {
  const std::vector<int64_t> ends = boundaries(expected);
  std::vector<at::Tensor> ids, labels, positions;
  std::vector<int64_t> kept, cu_seqlens{0};
  for (size_t i = 1; i < ends.size(); ++i) {
    const int64_t count = ends[i] - ends[i - 1];
    const int64_t fill = (multiple - count % multiple) % multiple;
    for (int64_t t = 0; t < count; ++t) kept.push_back(cu_seqlens.back() + t);
    const auto add = [&](std::vector<at::Tensor>& to, const char* name, int64_t value) {
      to.push_back(expected.at(name).narrow(0, ends[i - 1], count));
      to.push_back(at::full({fill}, value, at::kLong));
    };
    add(ids, "input_ids", 1);
    add(labels, "targets", kIgnoredLabel);
    add(positions, "position_ids", 0);
    cu_seqlens.push_back(cu_seqlens.back() + count + fill);
  }
  MicroBatch batch{at::cat(ids).unsqueeze(0), at::cat(labels).unsqueeze(0), {}, cu_seqlens};
  if (with_positions) batch.position_ids = at::cat(positions).unsqueeze(0);
  return {batch, at::tensor(kept, at::kLong)};
}

void expect_packed(const Layout& each, int64_t multiple, bool with_positions) {
  SCOPED_TRACE(each.name);
  const TensorMap expected = read_tensors(golden("packing/expected.safetensors").string());
  const Packed input = packed(expected, multiple, with_positions);
  run_golden(golden("hf/qwen2-tiny"), each, input.batch, [&](const ProbeResult& result) {
    ProbeResult real = result;
    real["logits"] = result.at("logits")[0].index_select(0, input.kept);
    const at::Tensor losses = result.at("per_token_loss")[0].index_select(0, input.kept);
    EXPECT_LE((losses - expected.at("per_token_loss")).abs().max().item<double>(), 2e-5);
    expect_parity(real, expected);
  });
}

TEST(PackingParity, EachSequenceIsComputedAsIfItWereAlone) {
  expect_packed(layout("one process", 1, 1), 1, false);
  expect_packed(layout("one process, positions given", 1, 1), 1, true);
  expect_packed(layout("tp 2, sequence parallel", 2, 1, true), 1, false);
}

TEST(PackingParity, ContextParallelismCutsEachSequence) {
  Layout gathered = layout("cp 2, gathered", 1, 2);
  gathered.args.options.cp_comm_type = CpCommType::all_gather;
  Layout exchanged = layout("cp 2, tokens for heads", 1, 2), of_four = layout("tp 2, cp 2, tokens for heads", 2, 2);
  exchanged.args.options.cp_comm_type = of_four.args.options.cp_comm_type = CpCommType::a2a;
  expect_packed(layout("cp 2", 1, 2), 4, false);
  expect_packed(layout("cp 2, positions given", 1, 2), 4, true);
  expect_packed(gathered, 4, false);
  expect_packed(exchanged, 4, false);
  expect_packed(of_four, 4, false);
  expect_packed(layout("tp 2, cp 2, sequence parallel", 2, 2, true), 4, false);
}

TEST(PackingParity, RecomputationKeepsItsSequencesApart) {
  Layout full = layout("full, cp 2", 1, 2);
  full.args.options.recompute = {.granularity = RecomputeGranularity::full};
  expect_packed(full, 4, false);
}

}  // namespace
}  // namespace concord::tests
