// Training, validation and test data from one source, like Megatron's --split: three adjacent ranges of its documents
// (or of its individual samples).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/data/arguments.h"
#include "trainer/data/sources/sample_source.h"
#include "trainer/data/text/documents.h"

namespace concord {

// Fractions of a whole; nullopt for an empty part.
struct Share {
  double begin = 0;
  double end = 1;
};
using Split = std::array<std::optional<Share>, 3>;  // by DataPart

// |weights| are up to three numbers: 969, 30, 1. Throws ConfigError unless they are non-negative numbers and one is
// positive.
Split parse_split(const std::vector<std::string>& weights);

// Documents [begin, end).
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
IndexRange range_of(const Share& share, int64_t count);

// Returns the part of |whole| that |arguments| select: that of |split|, and of documents the first |max_samples|;
// |whole| itself without these. Throws ConfigError if it would be empty. Samples are limited where they are read.
std::unique_ptr<Documents> part_of(std::unique_ptr<Documents> whole, const DataArguments& arguments);
std::unique_ptr<SampleSource> part_of(std::unique_ptr<SampleSource> whole, const DataArguments& arguments);

const char* to_string(DataPart part);

}  // namespace concord
