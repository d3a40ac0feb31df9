// Sending and receiving whole texts over stream sockets. Threads: any, one at a time per socket and direction.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

namespace concord {

// Sends what |socket| accepts now. Returns the number of bytes; 0: none; -1: an error, which is in errno.
inline ssize_t send_some(int socket, std::string_view bytes) {
  while (true) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

// Sends all of |bytes|. While |socket| accepts none, calls |wait|, which returns whether to try again. Returns false if
// |wait| did, and after an error, which is in errno.
template <class Wait>
bool send_all(int socket, std::string_view bytes, const Wait& wait) {
  while (!bytes.empty()) {
    const ssize_t sent = send_some(socket, bytes);
    if (sent < 0 || (sent == 0 && !wait())) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Receives |count| bytes. Calls |wait| before each read, which returns whether to go on. Returns false if |wait| did,
// after an error, which is in errno, and at the end of the stream, with errno 0.
template <class Wait>
bool receive_exactly(int descriptor, void* to, size_t count, const Wait& wait) {
  for (size_t got = 0; got < count;) {
    if (!wait()) return false;
    const ssize_t length = ::read(descriptor, static_cast<char*>(to) + got, count - got);
    if (length < 0 && errno == EINTR) continue;
    if (length == 0) errno = 0;
    if (length <= 0) return false;
    got += static_cast<size_t>(length);
  }
  return true;
}

}  // namespace concord
