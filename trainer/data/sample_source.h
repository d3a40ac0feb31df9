// Where samples come from: one interface for every kind of file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trainer/data/arguments.h"

namespace concord {

// One sequence to learn. labels[t] is the token that is to follow ids[t] (shifted already, as MicroBatch has it), or
// kIgnoredLabel. Both have the same length, at least 1. Files have HF's convention, labels aligned with the ids: their
// sources shift.
struct Sample {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
};

// A finite list of samples, in an order of its own. Immutable after it is made; any thread may read.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t size() const = 0;
  // |index| in [0, size()). Throws ConfigError for an id outside of the vocabulary.
  virtual Sample at(int64_t index) const = 0;
  // Tokens of at(index), without reading them.
  virtual int64_t length(int64_t index) const = 0;
  // Whether samples come shuffled from the source itself; the sampler then leaves the first epoch unchanged.
  virtual bool is_shuffled() const { return false; }
  // The file, for messages.
  virtual const std::string& name() const = 0;
};

// The source for arguments.path, chosen by its ending. Throws ConfigError for what cannot be read or is empty.
std::unique_ptr<SampleSource> open_sample_source(const DataArguments& arguments);

}  // namespace concord
