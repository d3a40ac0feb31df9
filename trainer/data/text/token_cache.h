// Text that training reads is tokenized once: the tokens are kept on disk under a name that is a hash of everything
// they depend on, so that the next start finds them and needs neither a tokenizer nor Python.
//
// An entry is what `concord data build` makes (a Megatron pair of a corpus, lines of ids of samples and pairs), in
// parallel, and continued after a crash. Of several processes that want it, one builds and the others wait. Its bytes
// are checked before they are used; a damaged entry is built again.
#pragma once

#include <string>
#include <vector>

#include "trainer/data/arguments.h"

namespace concord {

// Where entries are kept unless somebody says otherwise: $CONCORD_CACHE, else $XDG_CACHE_HOME/concord, else
// ~/.cache/concord if it can be written to; empty if there is none of them.
std::string default_token_cache();

// Whether the data of |arguments| is kept in a cache: it has one, and the data is text or a table, or several files.
// Lines of text under the byte tokenizer are not: they cost no more than reading tokens.
bool uses_token_cache(const DataArguments& arguments);

// Where the tokens are, made if necessary: a Megatron prefix, or a .jsonl. Shows progress on standard error. Threads
// and processes: any. Waits: for another one that builds the same. Throws ConfigError for what is wrong with the data,
// std::runtime_error if the disk is full.
std::string tokens_in_cache(const DataArguments& arguments);

}  // namespace concord
