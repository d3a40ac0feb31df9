// What this machine or its limits had too little of.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace concord {

// Where |error| means that memory of the host or of a device, threads, processes or open files ran out, a sentence with
// the limit that holds here and what to do; the libraries say no more than "bad_alloc" or "Resource temporarily
// unavailable". None for any other error. Threads: any; reads limits and /proc.
std::optional<std::string> what_is_short(const std::exception& error);

// Returns libtorch's message |said| without its backtrace. Pure.
std::string_view without_backtrace(std::string_view said);

}  // namespace concord
