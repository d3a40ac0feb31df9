#include "core/checkpoint/write/save_plan.h"

#include <fmt/core.h>

namespace concord {
namespace {

using safetensors::TensorShape;

SavePlan::Set plan_set(const std::string& stem, const std::vector<std::string>& lists, int64_t max_shard_bytes,
                       int64_t own_stage) {
  SavePlan::Set set{.stem = stem, .folder = {}, .of_earlier_stages = {}};
  std::vector<TensorShape> all;
  for (size_t stage = 0; stage < lists.size(); ++stage) {
    for (TensorShape& tensor : parse_list(lists[stage])) {
      if (static_cast<int64_t>(stage) < own_stage) set.of_earlier_stages.insert(tensor.name);
      all.push_back(std::move(tensor));
    }
  }
  set.folder = plan_hf_folder(std::move(all), max_shard_bytes, stem);
  return set;
}

}  // namespace

// Uses the header of a file with these tensors as the format.
std::string list_text(const std::vector<TensorShape>& tensors) {
  const safetensors::FilePlan plan = safetensors::plan_file(tensors, {}, "the list of a stage's tensors");
  return fmt::format("{}\n{}", plan.file_bytes - plan.head.size(), plan.head.substr(safetensors::kLengthBytes));
}
std::vector<TensorShape> parse_list(const std::string& text) {
  const size_t line = text.find('\n');
  const safetensors::Header header = safetensors::parse_header(
      std::string_view(text).substr(line + 1), std::stoull(text.substr(0, line)), "the list of a stage's tensors");
  return {header.tensors.begin(), header.tensors.end()};
}

SavePlan::Place SavePlan::find(size_t set, const std::string& tensor) const {
  const HfFolderPlan& folder = sets[set].folder;
  const HfFolderPlan::Place place = folder.find(tensor);
  size_t number = sets[set].first_tensor;
  for (size_t file = 0; file < place.file; ++file) number += folder.files[file].plan.tensors.size();
  const safetensors::FilePlan& file = folder.files[place.file].plan;
  number += static_cast<size_t>(place.tensor - file.tensors.data());
  return {place.file, place.tensor, file.place_of(*place.tensor), number};
}

SavePlan plan_save(const std::vector<std::string>& stems, const std::vector<std::vector<std::string>>& lists,
                   int64_t max_shard_bytes, int64_t own_stage) {
  SavePlan plan;
  for (size_t i = 0; i < stems.size(); ++i) {
    plan.sets.push_back(plan_set(stems[i], lists[i], max_shard_bytes, own_stage));
    SavePlan::Set& set = plan.sets.back();
    set.first_tensor = plan.tensor_count;
    for (const HfFolderPlan::File& file : set.folder.files) plan.tensor_count += file.plan.tensors.size();
    plan.total_bytes += set.folder.total_bytes;
  }
  return plan;
}

}  // namespace concord
