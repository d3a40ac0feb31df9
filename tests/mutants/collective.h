// Shared helpers for defects of collectives.
#pragma once

#include "tests/mutants/mutant.h"

namespace concord::mutants {

#define ALL_REDUCE_ARGUMENTS                                                                       \
  void *self, concord_comm comm, const void *send, void *recv, int64_t count, concord_dtype dtype, \
      concord_reduce_op reduce, concord_stream stream

inline const concord_comm_table& real() { return base().comm; }

inline bool is_good(const void* send, const void* recv, int64_t count) {
  return send != nullptr && recv != nullptr && count > 0;
}

template <concord_status (*Function)(ALL_REDUCE_ARGUMENTS)>
void replace_all_reduce(Tables& tables) {
  tables.comm.all_reduce = Function;
}

}  // namespace concord::mutants
