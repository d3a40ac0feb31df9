// Where a rank shows what a person watches.
#pragma once

namespace concord {

// Standard output; under a launcher that is a pipe, and the terminal behind it is opened instead. Standard error where
// standard output is for |json|.
int open_terminal(bool json);

}  // namespace concord
