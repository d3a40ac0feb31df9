// Reads memory that a plugin points to without trusting the pointer: a table whose struct_size is wrong, or a wild
// pointer, must produce an error message, not a crash. Only for the loader; far too slow for anything else.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace concord::loader {

// Copies |bytes| from |from| to |into|; false if they cannot be read.
bool read_memory(const void* from, void* into, size_t bytes);

// The string at |from| if it can be read and ends within |limit| bytes.
std::optional<std::string> read_string(const char* from, size_t limit = 4096);

// Whether |function| is in executable memory.
bool is_code(const void* function);

}  // namespace concord::loader
