#include "core/checkpoint/hf_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "core/base/config_error.h"
#include "core/safetensors/index.h"
#include "core/safetensors/natural_order.h"

namespace concord {
namespace {

constexpr int64_t kMinShare = 4096;  // elements: less is not worth a file operation per rank

using safetensors::TensorShape;

void remove_repeated(std::vector<TensorShape>& tensors) {
  const auto same = [](const TensorShape& a, const TensorShape& b) {
    if (a.name != b.name) return false;
    if (a.dtype != b.dtype || a.shape != b.shape) {
      throw ConfigError(fmt::format("tensor {} is {} in {} on one rank, but {} in {} on another", a.name,
                                    safetensors::shape_text(a.shape), to_string(a.dtype),
                                    safetensors::shape_text(b.shape), to_string(b.dtype)));
    }
    return true;
  };
  tensors.erase(std::unique(tensors.begin(), tensors.end(), same), tensors.end());
}

std::string file_name(const std::string& stem, size_t number, size_t count) {
  if (count == 1) return safetensors::single_file(stem);
  char name[64];
  std::snprintf(name, sizeof name, "-%05zu-of-%05zu.safetensors", number, count);
  return stem + name;
}

// Puts as many tensors into each file as fit.
std::vector<std::vector<TensorShape>> cut(std::vector<TensorShape> tensors, uint64_t max_file_bytes) {
  std::vector<std::vector<TensorShape>> files(1);
  uint64_t bytes = 0;
  for (TensorShape& tensor : tensors) {
    const uint64_t more = safetensors::tensor_bytes(tensor, "the folder to write");
    if (!files.back().empty() && (more > max_file_bytes || bytes > max_file_bytes - more)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(std::move(tensor));
    bytes += more;
  }
  return files;
}

}  // namespace

std::vector<GlobalTensor> global_tensors(const ShardSpec& spec) {
  (void)local_shape(spec, ShardPlace{});  // checks the description
  std::vector<GlobalTensor> tensors;
  std::vector<int64_t> shape;
  for (const ShardSpec::Dim& dim : spec.dims) shape.push_back(dim.size);
  const auto add = [&](const std::string& name) {
    if (!spec.stacked) {
      tensors.push_back({name, shape});
      return;
    }
    const size_t place = name.find("{}");
    if (place == std::string::npos)
      throw ConfigError(fmt::format("the name {} of a stack has no {{}} for the index", name));
    for (int64_t i = 0; i < spec.dims.front().size; ++i)
      tensors.push_back(
          {fmt::format("{}{}{}", name.substr(0, place), i, name.substr(place + 2)), {shape.begin() + 1, shape.end()}});
  };
  if (spec.pieces.empty() || spec.joined) {
    add(spec.name);
    return tensors;
  }
  for (size_t i = 0, end = 0; i < spec.pieces.size(); i = end) {  // pieces of one tensor have the same name
    int64_t& size = shape[spec.fused_dim] = 0;
    for (end = i; end < spec.pieces.size() && spec.pieces[end].name == spec.pieces[i].name; ++end) {
      size += spec.pieces[end].size;
    }
    add(spec.pieces[i].name);
  }
  return tensors;
}

WrittenShare written_share(int64_t elements, const Replicas& holders) {
  const int64_t share = std::max((elements + holders.count - 1) / holders.count, kMinShare);
  const int64_t begin = std::min(holders.index * share, elements);
  return {begin, std::min(begin + share, elements)};
}

WrittenPart written_part(const ShardSpec& spec, const RankLayout& layout, int64_t rank,
                         const std::optional<RankRange>& writers) {
  const ShardPlace place = shard_place(layout, rank);
  int64_t elements = 1;
  for (const int64_t size : local_shape(spec, place)) elements *= size;
  const auto [begin, end] = written_share(elements, replicas_of(spec, layout, rank, writers));
  return {begin, end, cut_runs(shard_runs(spec, place), begin, end)};
}

HfFolderPlan::Place HfFolderPlan::find(const std::string& tensor) const {
  const std::string& name = file_of.at(tensor);
  const auto file = std::find_if(files.begin(), files.end(), [&](const File& f) { return f.name == name; });
  return {static_cast<size_t>(file - files.begin()), &file->plan.at(tensor)};
}

HfFolderPlan plan_hf_folder(std::vector<TensorShape> tensors, int64_t max_file_bytes, const std::string& stem) {
  if (max_file_bytes < 1)
    throw ConfigError(fmt::format("the file size limit is {} bytes; must be >= 1", max_file_bytes));
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorShape& a, const TensorShape& b) { return safetensors::natural_less(a.name, b.name); });
  remove_repeated(tensors);
  HfFolderPlan plan;
  const auto parts = cut(std::move(tensors), static_cast<uint64_t>(max_file_bytes));
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = file_name(stem, i + 1, parts.size());
    plan.files.push_back({name, safetensors::plan_file(parts[i], safetensors::pytorch_metadata(), name)});
    const safetensors::FilePlan& file = plan.files.back().plan;
    for (const TensorShape& tensor : parts[i]) plan.file_of[tensor.name] = name;
    plan.total_bytes += file.file_bytes - file.head.size();
  }
  return plan;
}

}  // namespace concord
