// How the program reports why it ends.
#pragma once

#include <string>

namespace concord {

// "concord: |text|" on standard error. Of the processes of a job on this machine that end with the same message at
// about the same time one prints it. It is also the first of them to end, so that a launcher which looks at the first
// that failed, and ends the others, finds the message there. Waits: in a job of several processes, a second or two, and
// before a restart only a moment. The launcher is told that this process ends: it does not hang.
void print_error(const std::string& text);

}  // namespace concord
