// The terminal for the output of a rank.
#pragma once

namespace concord {

// Opens standard output or, under a launcher, where it is a pipe, the launcher's terminal. Standard error if standard
// output is used for |json|.
int open_terminal(bool json);

}  // namespace concord
