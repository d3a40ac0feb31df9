// A corpus as consecutive token sequences, before it is split into samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// Immutable after construction; any thread may read.
class Documents {
 public:
  virtual ~Documents() = default;

  virtual int64_t size() const = 0;  // number of sequences
  virtual int32_t length(int64_t sequence) const = 0;
  // Reads tokens [first, first + count) of |sequence|, which must be within it.
  virtual void read(int64_t sequence, int64_t first, int64_t count, int64_t* out) const = 0;
  // Returns the position of a sequence for messages: "corpus.bin, document 3".
  virtual std::string place(int64_t sequence) const = 0;
  virtual const std::string& name() const = 0;

  std::vector<int32_t> lengths() const;
};

// Throws ConfigError with the position of the first id outside of [0, vocab_size) among |ids|, tokens of |sequence|
// starting at |first|. Without a vocabulary (0) only negative ids are invalid.
void check_ids(const Documents& documents, int64_t sequence, int64_t first, const int64_t* ids, int64_t count,
               int64_t vocab_size);

// Returns a hash of all lengths and of the tokens: all of them up to |most|, otherwise those at evenly spaced
// positions, so that terabytes are not read.
uint64_t content_hash(const Documents& documents, int64_t most);

// Reads the whole corpus and checks it with check_ids().
void check_all_ids(const Documents& documents, int64_t vocab_size);

}  // namespace concord
