#include "trainer/batch_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <bit>

namespace concord {
namespace {

void append(const at::Tensor& tensor, std::vector<int64_t>* numbers) {
  const at::Tensor flat = tensor.contiguous();
  const int64_t* begin = flat.const_data_ptr<int64_t>();
  numbers->insert(numbers->end(), begin, begin + flat.numel());
}

// Reads a list from its beginning.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& numbers) : numbers_(numbers) {}

  int64_t number() { return numbers_.at(next_++); }
  std::vector<int64_t> list(int64_t size) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < size; ++i) values.push_back(number());
    return values;
  }
  at::Tensor tensor(int64_t rows, int64_t columns) {
    return at::tensor(list(rows * columns), at::kLong).view({rows, columns});
  }

 private:
  const std::vector<int64_t>& numbers_;
  size_t next_ = 0;
};

void append_media(const MicroBatch& batch, std::vector<int64_t>* numbers) {
  const MediaList& media = batch.media;
  for (const MediaGrids* grids : {&media.images, &media.videos}) {
    numbers->push_back(std::ssize(*grids));
    for (const MediaGrid& grid : *grids) numbers->insert(numbers->end(), {grid.frames, grid.rows, grid.columns});
  }
  numbers->push_back(std::ssize(media.seconds_per_group));
  for (const double seconds : media.seconds_per_group) numbers->push_back(std::bit_cast<int64_t>(seconds));
  if (!batch.pixel_values.defined()) return;
  const at::Tensor bits = batch.pixel_values.contiguous().view(at::kInt);
  numbers->push_back(bits.size(1));
  append(bits.to(at::kLong), numbers);
}

void read_media(Reader* reader, MicroBatch* batch) {
  int64_t patches = 0;
  for (MediaGrids* grids : {&batch->media.images, &batch->media.videos}) {
    for (int64_t left = reader->number(); left > 0; --left) {
      const std::vector<int64_t> sides = reader->list(3);
      patches += grids->emplace_back(MediaGrid{sides[0], sides[1], sides[2]}).patches();
    }
  }
  for (const int64_t seconds : reader->list(reader->number())) {
    batch->media.seconds_per_group.push_back(std::bit_cast<double>(seconds));
  }
  if (patches > 0) batch->pixel_values = reader->tensor(patches, reader->number()).to(at::kInt).view(at::kFloat);
}

// What the next rank of |group| sends while this one sends to the one before.
at::Tensor shifted(ProcessGroup& group, const at::Tensor& own, int64_t size) {
  const at::Tensor received = at::empty({size}, own.options());
  const int64_t ranks = group.size();
  const std::array transfers = {send(own, (group.rank() + ranks - 1) % ranks),
                                recv(received, (group.rank() + 1) % ranks)};
  group.batch_p2p(transfers).wait();
  return received;
}

}  // namespace

std::vector<int64_t> to_numbers(const StepInputs& inputs) {
  std::vector<int64_t> numbers = {static_cast<int64_t>(inputs.batches.size())};
  for (const MicroBatch& batch : inputs.batches) {
    numbers.insert(numbers.end(),
                   {batch.input_ids.size(0), batch.input_ids.size(1), batch.position_ids.defined(),
                    static_cast<int64_t>(batch.cu_seqlens.size()), static_cast<int64_t>(batch.pairs.size()),
                    batch.draws ? batch.draws->step : -1, batch.draws ? batch.draws->first_row : -1});
    numbers.insert(numbers.end(), batch.cu_seqlens.begin(), batch.cu_seqlens.end());
    numbers.insert(numbers.end(), batch.pairs.begin(), batch.pairs.end());
    for (const double margin : batch.margins) numbers.push_back(std::bit_cast<int64_t>(margin));
    append(batch.input_ids, &numbers);
    append(batch.labels, &numbers);
    if (batch.position_ids.defined()) append(batch.position_ids, &numbers);
    append_media(batch, &numbers);
  }
  for (const RngState& each : inputs.rng) {
    for (const uint64_t part : {each.state.key, each.state.subsequence, each.state.offset}) {
      numbers.push_back(static_cast<int64_t>(part));
    }
  }
  return numbers;
}

StepInputs from_numbers(const std::vector<int64_t>& numbers, const std::vector<RngState>& names) {
  Reader reader(numbers);
  StepInputs inputs;
  for (int64_t left = reader.number(); left > 0; --left) {
    const int64_t rows = reader.number(), columns = reader.number();
    const bool has_positions = reader.number() != 0;
    const int64_t boundaries = reader.number(), pairs = reader.number();
    const int64_t step = reader.number(), first_row = reader.number();
    MicroBatch& batch = inputs.batches.emplace_back();
    if (step >= 0) batch.draws = BatchDraws{step, first_row};
    batch.cu_seqlens = reader.list(boundaries);
    batch.pairs = reader.list(pairs);
    for (const int64_t margin : reader.list(pairs)) batch.margins.push_back(std::bit_cast<double>(margin));
    batch.input_ids = reader.tensor(rows, columns);
    batch.labels = reader.tensor(rows, columns);
    if (has_positions) batch.position_ids = reader.tensor(rows, columns);
    read_media(&reader, &batch);
  }
  for (const RngState& each : names) {
    const std::vector<int64_t> parts = reader.list(3);
    inputs.rng.push_back(
        {each.name,
         {static_cast<uint64_t>(parts[0]), static_cast<uint64_t>(parts[1]), static_cast<uint64_t>(parts[2])}});
  }
  return inputs;
}

StepInputs inputs_of_next_replica(ParallelContext& job, const StepInputs& own) {
  ProcessGroup& group = job.group(GroupKind::dp);
  const at::Tensor numbers = at::tensor(to_numbers(own), at::kLong).to(job.torch_device());
  const at::Tensor size = at::tensor({numbers.numel()}, at::kLong).to(job.torch_device());
  const at::Tensor received = shifted(group, numbers, shifted(group, size, 1).item<int64_t>()).cpu();
  const int64_t* begin = received.const_data_ptr<int64_t>();
  return from_numbers({begin, begin + received.numel()}, own.rng);
}

}  // namespace concord
