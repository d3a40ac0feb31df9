// Several sources as one, in the proportions that their weights say, sample by sample as Megatron's BlendedDataset has
// them.
//
// Weights are shares of the samples of a run: each source is asked for its share of samples_wanted and half a percent
// more, repeats its documents as often as that takes, and the samples of all of them are drawn so that after every one
// of them each source is as near to its share as it can be. Without weights each source is read once, in proportion to
// its size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/sample_source.h"

namespace concord {

struct Blend {
  std::vector<std::string> paths;
  std::vector<double> weights;  // empty: by the sizes of the sources
};

// |list| has weights and paths in turn (0.3, a, 0.7, b) or paths alone, as Megatron reads its --data-path. Throws
// ConfigError for weights that are not > 0, and where there are only some.
Blend parse_blend(const std::vector<std::string>& list);

// Which sample comes next: |index| of |source|.
struct BlendedSample {
  uint16_t source = 0;
  uint32_t index = 0;
  bool operator==(const BlendedSample&) const = default;
};
// |size| samples by |weights|, whose sum is 1.
std::vector<BlendedSample> blend_by_weights(const std::vector<double>& weights, int64_t size);
// All samples of all sources.
std::vector<BlendedSample> blend_all(const std::vector<int64_t>& sizes);

// How many samples each source contributes to |size| of them, and how many it is asked for. |weights| as above.
struct BlendSizes {
  std::vector<int64_t> contributed, asked_for;
  int64_t total = 0;  // of the first
};
BlendSizes blend_sizes(const std::vector<double>& weights, int64_t size);

// Of arguments.blend. Throws ConfigError as its sources do, and where weights are given but no samples_wanted.
std::unique_ptr<SampleSource> open_blend(const DataArguments& arguments);

}  // namespace concord
