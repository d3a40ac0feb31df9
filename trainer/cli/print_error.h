// Reports why the program exits.
#pragma once

#include <string>

namespace concord {

// Prints "concord: |text|" to standard error. If several processes of a job on this machine fail with the same message
// at about the same time, one of them prints it. That process exits first, so that a launcher, which reports the first
// failure and stops the others, finds the message. Tells the launcher that this process is about to exit.
// Waits: in a job of several processes a second or two, before a restart only a moment.
void print_error(const std::string& text);

// Sets the line that print_error prints after its message, with its line break.
void set_last_line(const std::string& line);

}  // namespace concord
