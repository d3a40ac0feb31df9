// The interface of sample sources, for every kind of file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/arguments.h"
#include "trainer/data/token_batch.h"

namespace concord {

// One training sequence. labels[t] is the next token after ids[t] (already shifted, as in MicroBatch), or
// kIgnoredLabel. Both have the same length, at least 1. Files use HF's convention, labels aligned with the ids; their
// sources shift.
struct Sample {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
  double margin = 0;  // target margin of the chosen response, in the first half of a pair
  BatchMedia media = {};
};

// Everything that determines the samples of a run and their order, as names and values, for comparison and messages.
using DataIdentity = std::vector<std::pair<std::string, std::string>>;

// The name of the value that depends on max_steps, for data that is split into samples like Megatron's.
inline constexpr const char* kEpochsShuffledTogether = "epochs shuffled together";

// A finite list of samples in a fixed order. Immutable after construction; any thread may read.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t size() const = 0;
  // |index| is in [0, size()). Throws ConfigError for an id outside the vocabulary.
  virtual Sample at(int64_t index) const = 0;
  // Returns the number of tokens of at(index), without reading them.
  virtual int64_t length(int64_t index) const = 0;
  // Returns the number of patches of each image and group of frames of at(index), without reading them.
  virtual std::vector<int64_t> media_patches(int64_t) const { return {}; }
  // Whether the source itself shuffles; the sampler then leaves the first epoch unchanged.
  virtual bool is_shuffled() const { return false; }
  // Whether a sample is cut from consecutive documents, each with an end-of-document token.
  virtual bool joins_documents() const { return false; }
  // Everything its samples depend on: sources with equal identities have equal samples. Does not include the file's
  // name, since data may be moved. The default consists of the number of samples and some of their lengths.
  virtual DataIdentity identity() const;
  // Describes samples longer than cutoff_len: "12 of 800 samples cut to 2048 tokens". Empty if there are none.
  virtual std::string cut_text() const { return ""; }
  // Returns how the images and videos of samples were converted; null if there are none.
  virtual const MediaFormat* media_format() const { return nullptr; }
  // Returns the file, for messages.
  virtual const std::string& name() const = 0;
};

// Opens arguments.path, by its ending. Throws ConfigError if it cannot be read or is empty.
std::unique_ptr<SampleSource> open_sample_source(const DataArguments& arguments);

}  // namespace concord
