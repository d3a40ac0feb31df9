// Caches the tokens of training text on disk under a hash of everything they depend on, so that the next start needs
// neither a tokenizer nor Python.
//
// An entry is the output of `concord data build` (a Megatron pair for a corpus, lines of ids for samples and pairs),
// built in parallel and resumed after a crash. If several processes need it, one builds and the others wait. Its bytes
// are checked before use; a damaged entry is built again.
#pragma once

#include <string>
#include <vector>

#include "trainer/data/arguments.h"

namespace concord {

// Returns the default folder: the first of $CONCORD_CACHE, $XDG_CACHE_HOME/concord and ~/.cache/concord that is set or
// can be written; empty if there is none.
std::string default_token_cache();

// Returns whether the data of |arguments| is cached: a cache is set, and the data is text, a table, or several files.
// Lines of text with the byte tokenizer are not, since they cost no more than reading tokens.
bool uses_token_cache(const DataArguments& arguments);

// Returns the path of the tokens, built if necessary: a Megatron prefix, or a .jsonl. Prints progress on standard
// error. Threads and processes: any. Waits: for another one that builds the same entry. Throws ConfigError for invalid
// data, std::runtime_error if the disk is full.
std::string tokens_in_cache(const DataArguments& arguments);

}  // namespace concord
