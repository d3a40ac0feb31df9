#include "core/parallel/padded_vocabulary.h"

#include <fmt/core.h>

#include "core/base/config_error.h"

namespace concord {

int64_t padded_vocabulary(int64_t vocabulary, int64_t degree, int64_t multiple) {
  if (vocabulary < 1 || degree < 1 || multiple < 1) {
    throw ConfigError(fmt::format("a vocabulary of {} padded to a multiple of {} times {} ranks; all three must be > 0",
                                  vocabulary, multiple, degree));
  }
  const int64_t unit = multiple * degree;
  return (vocabulary + unit - 1) / unit * unit;
}

}  // namespace concord
