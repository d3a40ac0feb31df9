#include "core/parallel/padded_vocabulary.h"

#include "core/config_error.h"
#include "platform/loader/text.h"

namespace concord {

int64_t padded_vocabulary(int64_t vocabulary, int64_t degree, int64_t multiple) {
  if (vocabulary < 1 || degree < 1 || multiple < 1) {
    throw ConfigError(loader::cat("a vocabulary of ", vocabulary, " padded to a multiple of ", multiple, " times ",
                                  degree, " ranks; all three must be > 0"));
  }
  const int64_t unit = multiple * degree;
  return (vocabulary + unit - 1) / unit * unit;
}

}  // namespace concord
