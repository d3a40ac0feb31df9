// Files that shared libraries open when they are loaded and never close (libtorch's, on ARM, two dozen of sysfs). They
// are not for the processes that this program starts.
#pragma once

namespace concord {

// Marks them close-on-exec: every descriptor that is open now and was not when the program was started. Called first in
// main. What the program was given by its parent stays as it is. Threads: before there are any.
void close_library_files_on_exec();

}  // namespace concord
