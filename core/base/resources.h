// Messages for exhausted resources of this machine.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace concord {

// If |error| means that host or device memory, threads, processes or open files are exhausted, returns a message with
// the limit in effect and what to do; the libraries report only "bad_alloc" or "Resource temporarily unavailable".
// Returns nullopt for any other error. Threads: any; reads limits and /proc.
std::optional<std::string> what_is_short(const std::exception& error);

// Returns libtorch's message |said| without its backtrace. Pure.
std::string_view without_backtrace(std::string_view said);

}  // namespace concord
