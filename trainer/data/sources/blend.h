// Blends several sources in proportion to their weights, sample by sample like Megatron's BlendedDataset.
//
// Weights are fractions of the samples of a run. Each source provides its fraction of samples_wanted plus half a
// percent, repeating its documents as necessary. Samples are drawn so that after each one every source is as close to
// its fraction as possible. Without weights each source is read once, in proportion to its size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/sources/sample_source.h"

namespace concord {

struct Blend {
  std::vector<std::string> paths;
  std::vector<double> weights;  // empty: proportional to the sizes of the sources
};

// Parses alternating weights and paths (0.3, a, 0.7, b) or only paths, like Megatron's --data-path. Throws ConfigError
// unless all weights are > 0, and if only some paths have one.
Blend parse_blend(const std::vector<std::string>& list);

// The next sample: |index| of |source|.
struct BlendedSample {
  uint16_t source = 0;
  uint32_t index = 0;
  bool operator==(const BlendedSample&) const = default;
};
// Returns |size| samples by |weights|, whose sum is 1.
std::vector<BlendedSample> blend_by_weights(const std::vector<double>& weights, int64_t size);
// Returns all samples of all sources.
std::vector<BlendedSample> blend_all(const std::vector<int64_t>& sizes);

// The number of samples that each source contributes to a total, and that it has to provide. |weights| as above.
struct BlendSizes {
  std::vector<int64_t> contributed, asked_for;
  int64_t total = 0;  // sum of |contributed|
};
BlendSizes blend_sizes(const std::vector<double>& weights, int64_t size);

// Opens arguments.blend. Throws ConfigError like its sources, and if weights are given without samples_wanted.
std::unique_ptr<SampleSource> open_blend(const DataArguments& arguments);

}  // namespace concord
