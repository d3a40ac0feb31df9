#include "backends/shm/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "platform/base/descriptor_message.hpp"
#include "platform/base/framed_socket.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kMagic = 0x434e4331;  // changes with the protocol and with the layout of the segment
constexpr size_t kNameBytes = 32;        // bytes of the id that name the socket; the rest is the secret
constexpr size_t kSecretBytes = static_cast<size_t>(kUniqueIdBytes) - kNameBytes;
constexpr milliseconds kSlice{100};
constexpr milliseconds kMaxBackOff{20};

// The first message of a guest.
struct Hello {
  uint32_t magic = kMagic;
  int32_t world = 0;
  int32_t rank = 0;
  int32_t reserved = 0;
  Member member;
  std::array<unsigned char, kSecretBytes> secret{};
};

// Later messages: the host offers the memory's file, a guest confirms that it has mapped it, the host confirms that all
// have. Any status except OK, from either side, is the last message and ends the rendezvous for all.
struct Verdict {
  uint32_t magic = kMagic;
  int32_t status = CONCORD_STATUS_OK;
  char text[1024] = {};
};

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Address address_of(const void* id) {
  Address address;
  address.name.sun_family = AF_UNIX;
  char* out = address.name.sun_path + 1;  // a first byte of 0 makes it abstract
  const auto* bytes = static_cast<const unsigned char*>(id);
  size_t length = static_cast<size_t>(std::snprintf(out, 16, "concord-shm-"));
  for (size_t i = 0; i < kNameBytes; ++i)
    length += static_cast<size_t>(std::snprintf(out + length, 3, "%02x", bytes[i]));
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

UniqueFd open_socket() {
  UniqueFd result(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!result) {
    sdk::fail(CONCORD_STATUS_UNAVAILABLE, sdk::text("cannot open a unix socket: %s", std::strerror(errno)));
  }
  return result;
}

ucred credentials_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) credentials.uid = ~uid_t{0};
  return credentials;
}

// Sends |message|, with |file| unless that is negative. Returns false if the other side has closed.
template <class Message>
bool send_message(int socket, const Message& message, int file = -1) {
  const std::span bytes(reinterpret_cast<const char*>(&message), sizeof message);
  if (file >= 0) return send_with_descriptors(socket, bytes, std::span<const int, 1>(&file, 1));
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

enum class Received { kMessage, kNothing, kEnd, kGarbage };

template <class Message>
Received receive_message(int socket, Message* out_message, UniqueFd* out_file = nullptr) {
  iovec data{out_message, sizeof *out_message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t length = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  // Closing a socket with unread messages resets it, which is reported first, and once; what it had sent is still
  // there.
  if (length < 0 && errno == ECONNRESET) length = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (length < 0) return errno == EAGAIN || errno == EINTR ? Received::kNothing : Received::kEnd;
  if (length == 0) return Received::kEnd;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int number = -1;
    std::memcpy(&number, CMSG_DATA(part), sizeof number);
    UniqueFd file(number);  // closed here unless the caller wants it
    if (out_file != nullptr) *out_file = std::move(file);
  }
  const bool whole = length == static_cast<ssize_t>(sizeof *out_message) && out_message->magic == kMagic;
  return whole ? Received::kMessage : Received::kGarbage;
}

Verdict make_verdict(concord_status status, const char* text) {
  Verdict verdict;
  verdict.status = status;
  sdk::write_string(verdict.text, text);
  return verdict;
}

Member this_member() { return {this_process(), available_processors()}; }

// The time that is left, and whether the rendezvous was cancelled.
class Patience {
 public:
  explicit Patience(const Meeting& meeting) : meeting_(meeting), end_(Clock::now() + meeting.timeout) {}

  bool over() const {
    if (meeting_.still_wanted) meeting_.still_wanted();
    return Clock::now() >= end_;
  }
  milliseconds slice(milliseconds at_most = kSlice) const {
    return std::clamp(std::chrono::ceil<milliseconds>(end_ - Clock::now()), milliseconds{0}, at_most);
  }

 private:
  const Meeting& meeting_;
  const Clock::time_point end_;
};

// ---------------------------------------------------------------------------------------------------------------- host

// Rank 0's side.
class Host {
 public:
  explicit Host(const Meeting& meeting) : meeting_(meeting), patience_(meeting) {}

  std::shared_ptr<Segment> run() {
    listen();
    try {
      listen_until_all_are(Stage::kKnown);
      listener_.reset();
      std::erase_if(guests_, [](const Guest& guest) { return guest.stage == Stage::kStranger; });
      auto segment = offer_memory();
      listen_until_all_are(Stage::kReady);
      // The first operation detects and names a rank that has exited by now.
      for (const Guest& guest : guests_) send_message(guest.socket.get(), Verdict{});
      return segment;
    } catch (const sdk::Failure& failure) {
      const Verdict verdict = make_verdict(failure.status(), failure.what());
      for (const Guest& guest : guests_) send_message(guest.socket.get(), verdict);
      throw;
    }
  }

 private:
  enum class Stage { kStranger, kKnown, kReady };
  struct Guest {
    UniqueFd socket;
    Stage stage = Stage::kStranger;
    int32_t rank = -1;
    Member member;
  };

  void listen() {
    listener_ = open_socket();
    const Address address = address_of(meeting_.id);
    const auto* name = reinterpret_cast<const sockaddr*>(&address.name);
    if (::bind(listener_.get(), name, address.length) != 0) {
      if (errno == EADDRINUSE) {
        sdk::invalid(
            sdk::text("communicator '%s': another rank 0 already uses this unique id; every rank needs its own "
                      "number, and every communicator its own id",
                      meeting_.name.c_str()));
      }
      sdk::fail(CONCORD_STATUS_UNAVAILABLE, sdk::text("cannot bind a unix socket: %s", std::strerror(errno)));
    }
    if (::listen(listener_.get(), meeting_.world) != 0) {
      sdk::fail(CONCORD_STATUS_UNAVAILABLE, sdk::text("cannot listen on a unix socket: %s", std::strerror(errno)));
    }
  }

  void listen_until_all_are(Stage stage) {
    const auto there = [&](const Guest& guest) { return guest.stage >= stage; };
    while (std::count_if(guests_.begin(), guests_.end(), there) < meeting_.world - 1) {
      if (patience_.over()) sdk::fail(CONCORD_STATUS_TIMEOUT, describe_missing(stage));
      poll_once();
    }
  }

  void poll_once() {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};  // a closed listener, -1, is skipped by poll
    for (const Guest& guest : guests_) entries.push_back({guest.socket.get(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), static_cast<int>(patience_.slice().count())) <= 0) return;
    for (size_t i = 0; i < guests_.size(); ++i) {
      if (entries[i + 1].revents != 0) hear(guests_[i]);
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.socket; });
    if (entries[0].revents != 0) accept();
  }

  void accept() {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket || credentials_of(socket.get()).uid != ::geteuid()) return;
    guests_.emplace_back().socket = std::move(socket);
  }

  void hear(Guest& guest) { guest.stage == Stage::kStranger ? hear_hello(guest) : hear_verdict(guest); }

  void hear_hello(Guest& guest) {
    Hello hello;
    const Received heard = receive_message(guest.socket.get(), &hello);
    if (heard == Received::kNothing) return;
    const auto* secret = static_cast<const unsigned char*>(meeting_.id) + kNameBytes;
    if (heard != Received::kMessage || std::memcmp(hello.secret.data(), secret, kSecretBytes) != 0) {
      guest.socket.reset();  // a stranger
      return;
    }
    guest.rank = hello.rank;
    guest.member = hello.member;
    check(hello, guest);
    guest.stage = Stage::kKnown;
  }

  void check(const Hello& hello, const Guest& newcomer) const {
    const auto who = sdk::text("communicator '%s': rank %d (pid %lld)", meeting_.name.c_str(), hello.rank,
                               static_cast<long long>(hello.member.process.pid));
    if (hello.world != meeting_.world) {
      sdk::invalid(sdk::text("%s expects %d ranks, rank 0 (pid %d) expects %d", who.c_str(), hello.world, ::getpid(),
                             meeting_.world));
    }
    if (hello.rank < 1 || hello.rank >= meeting_.world) {
      sdk::invalid(sdk::text("%s is not a rank of a communicator with %d ranks", who.c_str(), meeting_.world));
    }
    for (const Guest& guest : guests_) {
      if (&guest != &newcomer && guest.rank == hello.rank) {
        sdk::invalid(sdk::text("%s has the same rank as pid %lld; ranks must be distinct", who.c_str(),
                               static_cast<long long>(guest.member.process.pid)));
      }
    }
  }

  void hear_verdict(Guest& guest) const {
    Verdict verdict;
    const Received heard = receive_message(guest.socket.get(), &verdict);
    if (heard == Received::kNothing) return;
    if (heard != Received::kMessage) fail_lost(guest);
    verdict.text[sizeof verdict.text - 1] = '\0';
    if (verdict.status != CONCORD_STATUS_OK) sdk::fail(verdict.status, verdict.text);
    guest.stage = Stage::kReady;
  }

  void tell(const Guest& guest, const Verdict& verdict, int file = -1) const {
    if (!send_message(guest.socket.get(), verdict, file)) fail_lost(guest);
  }

  [[noreturn]] void fail_lost(const Guest& guest) const {
    sdk::fail(CONCORD_STATUS_PEER_LOST,
              sdk::text("communicator '%s': rank %d (pid %lld) has ended during set-up", meeting_.name.c_str(),
                        guest.rank, static_cast<long long>(guest.member.process.pid)));
  }

  std::string describe_missing(Stage stage) const {
    std::vector<bool> there(static_cast<size_t>(meeting_.world), false);
    there[0] = true;
    for (const Guest& guest : guests_) {
      if (guest.stage >= stage) there[static_cast<size_t>(guest.rank)] = true;
    }
    std::string missing;
    for (size_t r = 0; r < there.size() && missing.size() < 200; ++r) {
      if (!there[r]) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
    return sdk::text("communicator '%s': these of the %d ranks have not joined within %lld ms: %s",
                     meeting_.name.c_str(), meeting_.world, static_cast<long long>(meeting_.timeout.count()),
                     missing.c_str());
  }

  std::shared_ptr<Segment> offer_memory() {
    UniqueFd file;
    auto segment = Segment::create(meeting_.world, &file);
    segment->member(0) = this_member();
    for (const Guest& guest : guests_) segment->member(guest.rank) = guest.member;
    for (const Guest& guest : guests_) tell(guest, Verdict{}, file.get());
    return segment;
  }

  const Meeting& meeting_;
  const Patience patience_;
  UniqueFd listener_;
  std::vector<Guest> guests_;
};

// --------------------------------------------------------------------------------------------------------------- guest

// The side of all other ranks.
class Guest {
 public:
  explicit Guest(const Meeting& meeting) : meeting_(meeting), patience_(meeting) {}

  std::shared_ptr<Segment> run() {
    connect();
    host_pid_ = credentials_of(socket_.get()).pid;
    say_hello();
    try {
      UniqueFd file;
      wait_for_verdict(&file);
      auto segment = take_memory(file);
      send_message(socket_.get(), Verdict{});
      wait_for_verdict(nullptr);
      return segment;
    } catch (const sdk::Failure& failure) {
      send_message(socket_.get(), make_verdict(failure.status(), failure.what()));
      throw;
    }
  }

 private:
  void connect() {
    const Address address = address_of(meeting_.id);
    const auto* name = reinterpret_cast<const sockaddr*>(&address.name);
    milliseconds back_off{1};
    while (true) {
      socket_ = open_socket();
      if (::connect(socket_.get(), name, address.length) == 0) break;
      if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
        sdk::fail(CONCORD_STATUS_UNAVAILABLE, sdk::text("cannot connect to a unix socket: %s", std::strerror(errno)));
      }
      if (patience_.over()) fail_no_host();
      std::this_thread::sleep_for(patience_.slice(back_off));
      back_off = std::min(back_off * 2, kMaxBackOff);
    }
    const ucred host = credentials_of(socket_.get());
    if (host.uid != ::geteuid()) {
      sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION,
                sdk::text("communicator '%s': rank 0 is run by user %u (pid %d), this rank by user %u",
                          meeting_.name.c_str(), host.uid, host.pid, ::geteuid()));
    }
  }

  [[noreturn]] void fail_no_host() const {
    sdk::fail(CONCORD_STATUS_TIMEOUT,
              sdk::text("communicator '%s': rank %d has found no rank 0 within %lld ms; does it run on this host, with "
                        "the same unique id, in the same network namespace?",
                        meeting_.name.c_str(), meeting_.rank, static_cast<long long>(meeting_.timeout.count())));
  }

  void say_hello() {
    Hello hello;
    hello.world = meeting_.world;
    hello.rank = meeting_.rank;
    hello.member = this_member();
    std::memcpy(hello.secret.data(), static_cast<const unsigned char*>(meeting_.id) + kNameBytes, kSecretBytes);
    send_message(socket_.get(), hello);  // a host that is gone is noticed while waiting for its answer
  }

  void wait_for_verdict(UniqueFd* out_file) {
    while (true) {
      if (wait_until_ready(socket_.get(), POLLIN, Clock::now() + patience_.slice())) {
        Verdict verdict;
        const Received heard = receive_message(socket_.get(), &verdict, out_file);
        verdict.text[sizeof verdict.text - 1] = '\0';
        if (heard == Received::kMessage && verdict.status != CONCORD_STATUS_OK) sdk::fail(verdict.status, verdict.text);
        if (heard == Received::kMessage) return;
        if (heard != Received::kNothing) fail_lost_host();
      }
      if (patience_.over()) {
        sdk::fail(
            CONCORD_STATUS_TIMEOUT,
            sdk::text("communicator '%s': rank %d has met rank 0 (pid %d), but not all of the %d ranks have joined "
                      "within %lld ms",
                      meeting_.name.c_str(), meeting_.rank, host_pid_, meeting_.world,
                      static_cast<long long>(meeting_.timeout.count())));
      }
    }
  }

  std::shared_ptr<Segment> take_memory(const UniqueFd& file) const {
    if (!file) {
      sdk::fail(
          CONCORD_STATUS_OUT_OF_MEMORY,
          sdk::text("communicator '%s': rank %d could not receive the shared memory file; are there too many open "
                    "files (ulimit -n)?",
                    meeting_.name.c_str(), meeting_.rank));
    }
    return Segment::adopt(file, meeting_.world);
  }

  [[noreturn]] void fail_lost_host() const {
    if (meeting_.still_wanted) meeting_.still_wanted();
    sdk::fail(CONCORD_STATUS_PEER_LOST, sdk::text("communicator '%s': rank 0 (pid %d) has ended during set-up",
                                                  meeting_.name.c_str(), host_pid_));
  }

  const Meeting& meeting_;
  const Patience patience_;
  UniqueFd socket_;
  int32_t host_pid_ = 0;
};

std::shared_ptr<Segment> meet_alone() {
  UniqueFd file;
  auto segment = Segment::create(1, &file);
  segment->member(0) = this_member();
  return segment;
}

// A rank elsewhere would wait for its whole time for a socket that it cannot see.
void check_host(const Meeting& meeting) {
  uint64_t maker = 0;
  std::memcpy(&maker, static_cast<const char*>(meeting.id) + kUniqueIdBytes - kHostBytes, sizeof maker);
  const uint64_t here = this_host();
  if (here == maker || here == 0 || maker == 0) return;
  sdk::fail(CONCORD_STATUS_UNAVAILABLE,
            sdk::text("communicator '%s': rank %d runs on another host, or in another network namespace, than the rank "
                      "that made the communicator's id. These collectives use shared memory, which does not leave a "
                      "host: run all ranks on one host, or use a platform whose collectives do (cuda, ascend). On "
                      "the cpu platform CONCORD_CPU_NETWORK=auto on every host tries UCX, which is experimental",
                      meeting.name.c_str(), meeting.rank));
}

}  // namespace

std::shared_ptr<Segment> meet(const Meeting& meeting) {
  if (meeting.world == 1) return meet_alone();
  check_host(meeting);
  return meeting.rank == 0 ? Host(meeting).run() : Guest(meeting).run();
}

}  // namespace concord::shm
