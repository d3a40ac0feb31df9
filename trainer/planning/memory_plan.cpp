#include "trainer/planning/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "trainer/planning/memory_plan_parts.h"

namespace concord {

void MemoryPlan::add(const PlacedTensors& more) {
  if (more.bytes == 0) return;
  const auto found = std::ranges::find_if(tensors, [&](const PlacedTensors& each) {
    return each.kind == more.kind && each.type == more.type && each.place == more.place && each.moves == more.moves;
  });
  if (found == tensors.end()) {
    tensors.push_back(more);
    return;
  }
  found->bytes += more.bytes;
  found->least += more.least;
}

int64_t MemoryPlan::peak(Place place) const {
  int64_t always = 0, loss = 0, layer = 0;
  for (const PlacedTensors& each : tensors) {
    if (each.place != place) continue;
    (each.moves == Moves::loss ? loss : each.moves == Moves::layer ? layer : always) += each.bytes;
  }
  return always + std::max(loss, layer);
}

int64_t MemoryPlan::least(Place place) const {
  int64_t bytes = 0;
  for (const PlacedTensors& each : tensors) bytes += each.place == place ? each.least : 0;
  return bytes;
}

int64_t MemoryPlan::bytes(TensorClass kind, Place place) const {
  int64_t bytes = 0;
  for (const PlacedTensors& each : tensors) bytes += each.kind == kind && each.place == place ? each.bytes : 0;
  return bytes;
}

MicroBatchShape micro_batch_shape(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
  const int64_t given = a.data.seq_length > 0 ? a.data.seq_length : a.data.cutoff_len;
  MicroBatchShape shape{.rows = a.data.micro_batch_size * (a.preference.learns_pairs() ? 2 : 1),
                        .tokens = given > 0 ? given : plan.config.max_position_embeddings};
  if (plan.train_data) shape.has_full_rows = plan.train_data->source().joins_documents();
  return shape;
}

MemoryPlan plan_memory(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, const MicroBatchShape& batch) {
  if (!plan.config.module.empty()) {
    throw ConfigError(
        fmt::format("{} is a network of a Python program, whose activations are unknown", plan.config.architecture));
  }
  MemoryPlan memory;
  place_state(plan, layout, rank, &memory);
  place_activations(plan, layout, rank, batch, &memory);
  std::ranges::stable_sort(memory.tensors, {},
                           [](const PlacedTensors& each) { return std::pair(each.place, each.kind); });
  return memory;
}

int64_t expected_in_use(int64_t peak) {
  constexpr double kRuntime = 1.1 * (1 << 30), kFragmentation = 1.0175;
  return std::llround(static_cast<double>(peak) * kFragmentation + kRuntime);
}

RankMemory largest_memory_plan(const TrainingPlan& plan, const RankLayout& layout, const MicroBatchShape& batch) {
  RankMemory largest;
  for (int64_t pp = 0; pp < layout.pp(); ++pp) {
    const int64_t rank = layout.rank_at(0, 0, 0, pp);
    MemoryPlan memory = plan_memory(plan, layout, rank, batch);
    if (pp == 0 || memory.peak(Place::device) > largest.memory.peak(Place::device)) {
      largest = {rank, std::move(memory)};
    }
  }
  return largest;
}

std::string to_text(const MemoryPlan& memory) {
  std::string text =
      fmt::format("{:<21} {:<5} {:<7} {:>16} {:>9}  {}\n", "class", "type", "place", "bytes", "GiB", "moves");
  constexpr double kGiB = 1 << 30;
  for (const PlacedTensors& each : memory.tensors) {
    text += fmt::format("{:<21} {:<5} {:<7} {:>16} {:>9.3f}  {}\n", name_of(each.kind), each.type, name_of(each.place),
                        each.bytes, static_cast<double>(each.bytes) / kGiB, name_of(each.moves));
  }
  for (const Place place : {Place::device, Place::host}) {
    const int64_t peak = memory.peak(place);
    if (place == Place::host && peak == 0) continue;
    text += fmt::format("predicted peak of the {}: {} bytes, {:.2f} GiB (at least {:.2f} GiB)\n", name_of(place), peak,
                        static_cast<double>(peak) / kGiB, static_cast<double>(memory.least(place)) / kGiB);
  }
  text += fmt::format("in use on a GPU, with its runtime and fragmentation: about {:.1f} GiB\n",
                      static_cast<double>(expected_in_use(memory.peak(Place::device))) / kGiB);
  return text;
}

std::string to_json(const MemoryPlan& memory) {
  using nlohmann::ordered_json;
  ordered_json tensors = ordered_json::array();
  for (const PlacedTensors& each : memory.tensors) {
    tensors.push_back({{"class", name_of(each.kind)},
                       {"type", each.type},
                       {"place", name_of(each.place)},
                       {"moves", name_of(each.moves)},
                       {"bytes", each.bytes},
                       {"least", each.least}});
  }
  const auto totals = [&](Place place) {
    return ordered_json{{"peak", memory.peak(place)}, {"least", memory.least(place)}};
  };
  const ordered_json document = {{"tensors", tensors},
                                 {"device", totals(Place::device)},
                                 {"host", totals(Place::host)},
                                 {"expected_in_use", expected_in_use(memory.peak(Place::device))}};
  return document.dump();
}

}  // namespace concord
