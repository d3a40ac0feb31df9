// The tensors of a Hugging Face folder, and the file and position of each: the same value on every rank and for every
// layout, so that each rank can write its own part. Pure; threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/parallel/shard_spec.h"
#include "core/safetensors/index.h"
#include "core/safetensors/writer.h"

namespace concord {

struct GlobalTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool operator==(const GlobalTensor&) const = default;
};

// Returns the tensors that a parameter represents, without padding: its pieces, the tensors of its stack. Throws
// ConfigError like local_shape().
std::vector<GlobalTensor> global_tensors(const ShardSpec& spec);

// The part of |elements| that one of several replicas writes: equal parts; if there are few elements, the first replica
// writes all.
struct WrittenShare {
  int64_t begin = 0;
  int64_t end = 0;
};
WrittenShare written_share(int64_t elements, const Replicas& holders);

// Returns the elements [begin, end) of the rank's tensor that |rank| writes. Replicas (replicated_over) divide the
// elements among them. |writers|, if given, are the ranks that write the folder, including |rank|.
struct WrittenPart {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<ShardRun> runs;  // |local| is relative to |begin|
};
WrittenPart written_part(const ShardSpec& spec, const RankLayout& layout, int64_t rank,
                         const std::optional<RankRange>& writers = {});

struct HfFolderPlan {
  struct File {
    std::string name;
    safetensors::FilePlan plan;
  };
  struct Place {
    size_t file;  // index in |files|
    const safetensors::TensorInfo* tensor;
  };

  std::vector<File> files;
  std::map<std::string, std::string> file_of;  // tensor -> file name
  uint64_t total_bytes = 0;

  bool has_index() const { return files.size() > 1; }
  Place find(const std::string& tensor) const;  // valid as long as the plan; throws std::out_of_range
};

// Distributes tensors in natural order over files of at most |max_file_bytes| of data; a larger tensor has its own
// file. One file is model.safetensors (|stem|), several are model-00001-of-00003.safetensors etc. with an index, like
// transformers. Identical duplicates (an embedding on two stages) count once. Throws ConfigError, with both, for
// duplicates that differ, and unless max_file_bytes is positive.
HfFolderPlan plan_hf_folder(std::vector<safetensors::TensorShape> tensors, int64_t max_file_bytes,
                            const std::string& stem = safetensors::kModelStem);

}  // namespace concord
