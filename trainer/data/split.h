// Training, validation and test data from one source, as Megatron's --split makes them: three neighbouring ranges of
// its documents (or of its samples, where they come one by one).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/arguments.h"
#include "trainer/data/sample_source.h"
#include "trainer/data/text/documents.h"

namespace concord {

// Shares of a whole; none where a part is empty.
struct Share {
  double begin = 0;
  double end = 1;
};
using Split = std::array<std::optional<Share>, 3>;  // by DataPart

// |weights| are up to three numbers: 969, 30, 1. Throws ConfigError for what is not a number, for negative ones, and
// where all are 0.
Split parse_split(const std::vector<std::string>& weights);

// [begin, end) of |count| documents.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
IndexRange range_of(const Share& share, int64_t count);

// The part of |whole| that |arguments| ask for; itself without a split. Throws ConfigError where it would be empty.
std::unique_ptr<Documents> part_of(std::unique_ptr<Documents> whole, const DataArguments& arguments);
std::unique_ptr<SampleSource> part_of(std::unique_ptr<SampleSource> whole, const DataArguments& arguments);

const char* to_string(DataPart part);

}  // namespace concord
