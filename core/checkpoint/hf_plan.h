// Which tensors a Hugging Face folder has, and the file and position of each of them: the same value on every rank
// and under every layout, so that each can write its own part. Pure; threads: any.
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

// The tensors that a parameter represents, without padding: its pieces, the tensors of its stack. Throws ConfigError as
// local_shape does.
std::vector<GlobalTensor> global_tensors(const ShardSpec& spec);

// The part of |elements| that one of |holders| writes: each one of the same size; few elements are the first one's.
struct WrittenShare {
  int64_t begin = 0;
  int64_t end = 0;
};
WrittenShare written_share(int64_t elements, const Replicas& holders);

// The elements [begin, end) of the rank's tensor that |rank| writes. Those with the same elements (replicated_over)
// divide them. |writers|: the ranks that write a folder
// together, |rank| among them, where these are not all.
struct WrittenPart {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<ShardRun> runs;  // |local| counts from |begin|
};
WrittenPart written_part(const ShardSpec& spec, const RankLayout& layout, int64_t rank,
                         const std::optional<RankRange>& writers = {});

struct HfFolderPlan {
  struct File {
    std::string name;
    safetensors::FilePlan plan;
  };
  struct Place {
    size_t file;  // in |files|
    const safetensors::TensorInfo* tensor;
  };

  std::vector<File> files;
  std::map<std::string, std::string> file_of;  // tensor -> name of its file
  uint64_t total_bytes = 0;

  bool has_index() const { return files.size() > 1; }
  Place find(const std::string& tensor) const;  // valid as long as the plan; throws std::out_of_range
};

// Tensors in natural order, cut into files of at most |max_file_bytes| of data; a larger tensor has a file for itself.
// One file is model.safetensors (|stem|), more are model-00001-of-00003.safetensors and so on with an index, as
// transformers writes them. A tensor that is given twice alike (an embedding on two stages) counts once. Throws
// ConfigError, with both, if it is given twice and differs, and if max_file_bytes is not positive.
HfFolderPlan plan_hf_folder(std::vector<safetensors::TensorShape> tensors, int64_t max_file_bytes,
                            const std::string& stem = safetensors::kModelStem);

}  // namespace concord
