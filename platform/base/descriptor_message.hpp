// Messages with open descriptors, between processes of one machine.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <span>

namespace concord {

// Sends |bytes| and copies of |descriptors|. True if all of it was sent.
template <size_t N>
bool send_with_descriptors(int socket, std::span<const char> bytes, std::span<const int, N> descriptors) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(N * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(N * sizeof(int));
  std::memcpy(CMSG_DATA(header), descriptors.data(), N * sizeof(int));
  ssize_t sent = 0;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

// How many bytes have come, with all |descriptors|, which are closed by exec; 0: the other end has gone, or this was no
// such message. Waits: for one.
template <size_t N>
size_t receive_with_descriptors(int socket, std::span<char> bytes, std::span<int, N> descriptors) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(N * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t length = 0;
  do length = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (length < 0 && errno == EINTR);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (length <= 0 || header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(N * sizeof(int))) {
    return 0;
  }
  std::memcpy(descriptors.data(), CMSG_DATA(header), N * sizeof(int));
  return static_cast<size_t>(length);
}

}  // namespace concord
