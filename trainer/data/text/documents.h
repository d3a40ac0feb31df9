// Tokens as consecutive sequences: a corpus before it is split into samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// Immutable after it is made; any thread may read.
class Documents {
 public:
  virtual ~Documents() = default;

  virtual int64_t size() const = 0;  // sequences
  virtual int32_t length(int64_t sequence) const = 0;
  // Tokens [first, first + count) of |sequence|, which must lie within it.
  virtual void read(int64_t sequence, int64_t first, int64_t count, int64_t* out) const = 0;
  // "corpus.bin, document 3": the place of a sequence, for messages.
  virtual std::string place(int64_t sequence) const = 0;
  virtual const std::string& name() const = 0;

  std::vector<int32_t> lengths() const;
};

// Throws ConfigError that names the place of the first id outside of [0, vocab_size) among |ids|, tokens of |sequence|
// from position |first|. Without a vocabulary (0) only negative ids are wrong.
void check_ids(const Documents& documents, int64_t sequence, int64_t first, const int64_t* ids, int64_t count,
               int64_t vocab_size);

// Of all lengths and of the tokens: all of them up to |most|, else those of evenly spaced places, so that terabytes are
// not read.
uint64_t content_hash(const Documents& documents, int64_t most);

// Reads all of it and checks it so.
void check_all_ids(const Documents& documents, int64_t vocab_size);

}  // namespace concord
