// Where samples come from: one interface for every kind of file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/arguments.h"

namespace concord {

// One sequence to learn. labels[t] is the token that is to follow ids[t] (shifted already, as MicroBatch has it), or
// kIgnoredLabel. Both have the same length, at least 1. Files have HF's convention, labels aligned with the ids: their
// sources shift.
struct Sample {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;
  double margin = 0;  // of a pair's first half: by how much it is to be better
};

// What fixes the samples that a run gets and their order, name and value each, for comparing and for messages.
using DataIdentity = std::vector<std::pair<std::string, std::string>>;

// The name of the value that depends on max_steps, in data that is split into samples as Megatron does it.
inline constexpr const char* kEpochsShuffledTogether = "epochs shuffled together";

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
  // Whether a sample is cut from documents that follow each other, each with a token that ends it.
  virtual bool joins_documents() const { return false; }
  // What its samples depend on; where two sources have the same, sample i of both is the same. The file's name is not
  // part of it: data may be moved. The default knows the number of samples and some of their lengths.
  virtual DataIdentity identity() const;
  // Samples that were longer than cutoff_len, and what became of them: "12 of 800 samples cut to 2048 tokens". Empty:
  // none.
  virtual std::string cut_text() const { return ""; }
  // The file, for messages.
  virtual const std::string& name() const = 0;
};

// The source for arguments.path, chosen by its ending. Throws ConfigError for what cannot be read or is empty.
std::unique_ptr<SampleSource> open_sample_source(const DataArguments& arguments);

}  // namespace concord
