// Ports on UCX (ucp): active messages with a header, over TCP or whatever network UCX finds on the machine.
//
// One context for the process, one worker for a port: communicators share no state, and closing one disturbs no other.
// An endpoint is made at the first send to a peer. A worker is destroyed only when all peers have left: UCX 1.13 loses
// messages where one goes while a peer still connects to it (docs/backends.md).
//
// A message goes in fragments, each an active message that is sent eagerly: a rank that has received all it waits for
// may turn to something else, and no peer then waits for an answer of its. (UCX's rendezvous protocol has them.)
// A fragment says which part it is of which message of its sender, so nothing depends on the order in which they come.
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backends/net/source_filter.h"
#include "backends/net/transport.h"

namespace concord::net {
namespace {

constexpr unsigned kFragment = 1;  // the active message's number
// A fragment with its envelope fits into one segment of UCX's TCP transport, so that UCX never has to assemble any; and
// a slice of a reduction (chain.cpp) into one fragment.
constexpr const char* kSegment = "288k";
constexpr int64_t kFragmentBytes = 264 << 10;
// Fragments from this size on are sent from where they are, without a copy.
constexpr int64_t kDirectBytes = 8 << 10;

// The fragments of a message have about one length: a short one would be copied.
int64_t fragment_bytes(int64_t message_bytes) {
  const int64_t count = (message_bytes + kFragmentBytes - 1) / kFragmentBytes;
  constexpr int64_t kAlign = 64;
  return count <= 1 ? kFragmentBytes : ((message_bytes + count - 1) / count + kAlign - 1) / kAlign * kAlign;
}

// What travels with the data of a fragment.
struct Envelope {
  uint64_t key = 0;   // of the communicator
  uint32_t rank = 0;  // of the sender
  uint32_t lane = 0;
  uint64_t number = 0;  // of the message, among those of this sender and lane
  int64_t bytes = 0;    // of the whole message
  int64_t offset = 0;   // of this fragment
  Header header;
};

// --------------------------------------------------------------------------------------------------------- the context

// UCX takes over signals when it is loaded and prints to standard output; a library inside a program does neither.
void tame() {
  for (const int each : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(each);
  if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_global_opts_set_value("LOG_LEVEL", "fatal");
}

// InfiniBand and the like, which UCX prefers to TCP.
bool has_faster_network() { return ::access("/sys/class/infiniband", F_OK) == 0; }

// Settings of UCX's that the user has not chosen otherwise.
class Settings {
 public:
  explicit Settings(ucp_config_t* config) : config_(config) {}
  // |name| is for ucp_config_modify, and |variable| the user's; true if the user has left it to this program.
  bool set(const char* variable, const char* name, const char* value) {
    if (std::getenv(variable) != nullptr) return false;
    return ucp_config_modify(config_, name, value) == UCS_OK;
  }

 private:
  ucp_config_t* const config_;
};

struct Context {
  ucp_context_h handle = nullptr;
  ucs_status_t status = UCS_OK;
  std::string unusable;  // the chosen interface, if UCX goes on without it: peers would wait for ever
  // On TCP, a direct fragment that is done is in the kernel; copied ones, and other networks, need a flush.
  bool done_means_gone = false;

  explicit Context(const Opening& opening) {
    tame();
    ucp_config_t* config = nullptr;
    status = ucp_config_read(nullptr, nullptr, &config);
    if (status != UCS_OK) return;
    Settings settings(config);
    // Inside a host there is backends/shm. UCX would take two network namespaces of one machine for one host.
    const bool own_choice = settings.set("UCX_TLS", "TLS", "^sm");
    const bool restricted = opening.interface_is_must || !has_faster_network();
    if (restricted && *opening.interface != 0) {
      const bool is_set = settings.set("UCX_NET_DEVICES", "NET_DEVICES", opening.interface);  // where UCX listens, too
      if (is_set) unusable = opening.interface;
    }
    for (const std::string name : {"TX_SEG_SIZE", "RX_SEG_SIZE"}) {
      const std::string variable = "UCX_TCP_" + name;
      settings.set(variable.c_str(), name.c_str(), kSegment);             // UCX up to 1.13
      settings.set(variable.c_str(), ("TCP_" + name).c_str(), kSegment);  // later ones
    }
    const bool direct = settings.set("UCX_ZCOPY_THRESH", "ZCOPY_THRESH", std::to_string(kDirectBytes).c_str());
    done_means_gone = own_choice && direct && !has_faster_network();
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    parameters.mt_workers_shared = 1;
    status = ucp_init(&parameters, config, &handle);
    ucp_config_release(config);
    if (status == UCS_OK && uses(unusable)) unusable.clear();
  }

  // Whether |interface| is among the "tcp/eth0", "rc_mlx5/mlx5_0:1", ... that UCX has found, one "resource" each.
  bool uses(const std::string& interface) const {
    char* text = nullptr;
    size_t bytes = 0;
    std::FILE* const stream = ::open_memstream(&text, &bytes);
    if (stream == nullptr) return true;
    ucp_context_print_info(handle, stream);
    std::fclose(stream);
    const std::string info(text, bytes);
    std::free(text);
    return info.find("resource") == std::string::npos || info.find("/" + interface) != std::string::npos;
  }
};

// For as long as the process: ports may outlive any owner. |first|: for the first port; all have the same network.
const Context& context(const Opening* first = nullptr) {
  static const auto* const one = new Context(*first);
  return *one;
}

// ------------------------------------------------------------------------------------------------------- the attendant

class UcxPort;

// Drives the ports that nobody else drives. One thread, which sleeps while nothing comes, for as long as the process.
class Attendant {
 public:
  static Attendant& here() {
    static auto* const one = new Attendant();
    return *one;
  }
  // When the process exits: UCX's own handlers come next, and nobody may be inside UCX then.
  static void stop() {
    const std::lock_guard lock(here().mutex_);
    here().stopped_ = true;
  }
  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  // Ports are known by numbers: one that was removed is not found any more.
  uint64_t add(UcxPort* port, int events);
  void remove(uint64_t number, int events);
  // The port is the caller's, or this thread's; it has been drained then.
  void hand_over(uint64_t number, int events, bool to_attendant);

 private:
  Attendant() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    std::atexit(stop);
    std::thread([this] { run(); }).detach();
  }
  [[noreturn]] void run();

  const int epoll_;
  std::mutex mutex_;  // guards all below; held while a port is driven, so that none is removed meanwhile
  uint64_t last_ = 0;
  bool stopped_ = false;
  struct Ward {
    UcxPort* port = nullptr;
    bool ours = false;
  };
  void watch(uint64_t number, int events, bool wanted) const {
    epoll_event event{};
    event.events = wanted ? EPOLLIN | EPOLLONESHOT : 0;
    event.data.u64 = number;
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, events, &event);
  }
  std::map<uint64_t, Ward> ports_;
};

// ------------------------------------------------------------------------------------------------------------ the port

class UcxPort final : public Port {
 public:
  explicit UcxPort(const Opening& opening)
      : rank_(opening.rank), key_(opening.key), peers_(static_cast<size_t>(opening.world)) {}
  ~UcxPort() override;

  // Sets |error| to a message if the cause is not UCX.
  ucs_status_t open(std::span<const Address> sources, std::string* error);

  const std::byte* address() const override { return reinterpret_cast<const std::byte*>(address_); }
  size_t address_bytes() const override { return address_bytes_; }
  void set_address(int32_t peer, const std::byte* address, size_t bytes) override {
    peers_[static_cast<size_t>(peer)].address.assign(address, address + bytes);
  }
  void send(int32_t peer, Lane lane, const Header& header, const void* data, int64_t bytes,
            Transfer* transfer) override;
  void receive(int32_t peer, Lane lane, void* data, int64_t bytes, Transfer* transfer) override;
  void flush(int32_t peer, Transfer* transfer) override;
  void retire() override;
  void drive(bool mine) override;
  void progress(int milliseconds) override;

  int events() const { return events_; }
  // Moves everything, and makes the event descriptor tell of what comes next. For whoever drives the port.
  void drain() {
    do {
      while (ucp_worker_progress(worker_) != 0) {
      }
    } while (ucp_worker_arm(worker_) == UCS_ERR_BUSY);
  }

 private:
  // A message of which not all has come, or for which there is no receive yet.
  struct Arriving {
    Header header;
    int64_t bytes = -1;  // of the message; -1: nothing has come
    int64_t come = 0;
    std::vector<std::byte> copy;  // what came before the receive
    // The receive.
    std::byte* data = nullptr;
    int64_t wanted = 0;
    Transfer* transfer = nullptr;

    bool complete() const { return transfer != nullptr && come == bytes; }
  };
  struct Incoming {
    uint64_t next = 0;  // number of the next receive
    std::map<uint64_t, Arriving> messages;
  };
  struct Peer {
    std::vector<std::byte> address;
    ucp_ep_h endpoint = nullptr;
    ucs_status_t broken = UCS_OK;
    bool needs_flush = false;  // something was sent that may be done without having left this process
    std::array<uint64_t, kLanes> sent{};
    std::array<Incoming, kLanes> incoming;
  };
  // What has to stay until UCX has sent the fragments of a message.
  struct Sending {
    std::vector<Envelope> envelopes;
    size_t left = 0;
    ucs_status_t status = UCS_OK;
    Transfer* transfer = nullptr;
  };

  static ucs_status_t on_fragment(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                  const ucp_am_recv_param_t* parameters);
  static void on_error(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* sending);
  static void on_flushed(void* request, ucs_status_t status, void* transfer);
  static void sent_one(Sending* sending, ucs_status_t status);

  static void end(Transfer* transfer, ucs_status_t status) {
    transfer->state = status == UCS_OK ? Transfer::State::kDone : Transfer::State::kBroken;
    transfer->why = ucs_status_string(status);
  }
  ucs_status_t connect(Peer& peer);
  // Whether the peers connect to |listener|: its port is part of the worker's address.
  bool is_part_of_address(int listener) const;
  // Ends the receive of a message that is complete.
  static void deliver(Incoming& incoming, std::map<uint64_t, Arriving>::iterator message);

  const int32_t rank_;
  const uint64_t key_;
  std::vector<Peer> peers_;
  ucp_worker_h worker_ = nullptr;
  ucp_address_t* address_ = nullptr;
  size_t address_bytes_ = 0;
  int events_ = -1;
  uint64_t number_ = 0;  // with the attendant
  bool closing_ = false;
};

// The sockets of this process that listen.
std::set<int> listeners() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t length = sizeof listens;
    if (::getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0) found.insert(number);
  }
  return found;
}

bool UcxPort::is_part_of_address(int listener) const {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&own), &length) != 0) return false;
  if (own.ss_family != AF_INET && own.ss_family != AF_INET6) return false;
  // The port is at the same place in both kinds of addresses, and in UCX's in the same order of bytes.
  const auto* port = reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in*>(&own)->sin_port);
  const std::string_view address(reinterpret_cast<const char*>(address_), address_bytes_);
  return address.find(std::string_view(port, sizeof(in_port_t))) != std::string_view::npos;
}

// UCX accepts whoever knows its magic number, and a stranger's messages may end the process or write into its memory.
// So its listening sockets, which are those that have appeared with the worker, get a filter at once.
ucs_status_t UcxPort::open(std::span<const Address> sources, std::string* error) {
  if (context().status != UCS_OK) return context().status;
  static std::mutex mutex;
  std::unique_lock one_at_a_time(mutex);
  const std::set<int> before = listeners();
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context().handle, &parameters, &worker_);
  if (status == UCS_OK) status = ucp_worker_get_efd(worker_, &events_);
  if (status == UCS_OK) status = ucp_worker_get_address(worker_, &address_, &address_bytes_);
  if (status != UCS_OK) return status;
  for (const int listener : sources.empty() ? std::set<int>() : listeners()) {
    if (before.contains(listener) || !is_part_of_address(listener) || admit_only(listener, sources)) continue;
    *error = std::string("the kernel refuses a filter for UCX's port (SO_ATTACH_FILTER): ") + std::strerror(errno);
    return UCS_ERR_UNSUPPORTED;
  }
  one_at_a_time.unlock();
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFragment;
  handler.cb = on_fragment;
  handler.arg = this;
  status = ucp_worker_set_am_recv_handler(worker_, &handler);
  number_ = Attendant::here().add(this, events_);
  return status;
}

UcxPort::~UcxPort() {
  if (worker_ == nullptr) return;
  if (number_ != 0) Attendant::here().remove(number_, events_);
  if (Attendant::here().stopped()) return;
  closing_ = true;
  ucp_request_param_t now{};
  now.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  now.flags = UCP_EP_CLOSE_FLAG_FORCE;
  for (Peer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    ucs_status_ptr_t request = ucp_ep_close_nbx(peer.endpoint, &now);
    if (!UCS_PTR_IS_PTR(request)) continue;
    // A forced close ends by itself; the bound is for a bug of the library's.
    for (int i = 0; i < 10000 && ucp_request_check_status(request) == UCS_INPROGRESS; ++i) ucp_worker_progress(worker_);
    ucp_request_free(request);
  }
  if (address_ != nullptr) ucp_worker_release_address(worker_, address_);
  ucp_worker_destroy(worker_);
}

ucs_status_t UcxPort::connect(Peer& peer) {
  if (peer.endpoint != nullptr || peer.broken != UCS_OK) return peer.broken;
  ucp_ep_params_t parameters{};
  parameters.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = {on_error, this};
  peer.broken = ucp_ep_create(worker_, &parameters, &peer.endpoint);
  return peer.broken;
}

void UcxPort::send(int32_t to, Lane lane, const Header& header, const void* data, int64_t bytes, Transfer* transfer) {
  *transfer = {};
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (const ucs_status_t status = connect(peer); status != UCS_OK) return end(transfer, status);
  const uint64_t number = peer.sent[static_cast<size_t>(lane)]++;
  if (!context().done_means_gone || bytes < kDirectBytes) peer.needs_flush = true;
  auto sending = std::make_unique<Sending>();
  sending->transfer = transfer;
  const int64_t fragment = fragment_bytes(bytes);
  for (int64_t offset = 0; offset == 0 || offset < bytes; offset += fragment) {
    sending->envelopes.push_back(
        {key_, static_cast<uint32_t>(rank_), static_cast<uint32_t>(lane), number, bytes, offset, header});
  }
  sending->left = sending->envelopes.size();
  Sending* const kept = sending.release();  // sent_one() frees it after the last fragment
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  parameters.cb.send = on_sent;
  parameters.user_data = kept;
  parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  for (size_t i = 0, count = kept->envelopes.size(); i < count; ++i) {
    const int64_t offset = kept->envelopes[i].offset;
    ucs_status_ptr_t request = ucp_am_send_nbx(peer.endpoint, kFragment, &kept->envelopes[i], sizeof(Envelope),
                                               static_cast<const std::byte*>(data) + offset,
                                               static_cast<size_t>(std::min(fragment, bytes - offset)), &parameters);
    if (!UCS_PTR_IS_PTR(request)) sent_one(kept, UCS_PTR_STATUS(request));
  }
}

void UcxPort::sent_one(Sending* sending, ucs_status_t status) {
  if (status != UCS_OK) sending->status = status;
  if (--sending->left > 0) return;
  end(sending->transfer, sending->status);
  delete sending;
}

void UcxPort::on_sent(void* request, ucs_status_t status, void* sending) {
  sent_one(static_cast<Sending*>(sending), status);
  ucp_request_free(request);
}

void UcxPort::flush(int32_t to, Transfer* transfer) {
  *transfer = {};
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.endpoint == nullptr || peer.broken != UCS_OK || !peer.needs_flush) return end(transfer, peer.broken);
  peer.needs_flush = false;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = on_flushed;
  parameters.user_data = transfer;
  ucs_status_ptr_t request = ucp_ep_flush_nbx(peer.endpoint, &parameters);
  if (!UCS_PTR_IS_PTR(request)) end(transfer, UCS_PTR_STATUS(request));
}

void UcxPort::on_flushed(void* request, ucs_status_t status, void* transfer) {
  end(static_cast<Transfer*>(transfer), status);
  ucp_request_free(request);
}

// ----------------------------------------------------------------------------------------------------------- receiving

void UcxPort::receive(int32_t from, Lane lane, void* data, int64_t bytes, Transfer* transfer) {
  *transfer = {};
  Incoming& incoming = peers_[static_cast<size_t>(from)].incoming[static_cast<size_t>(lane)];
  const auto place = incoming.messages.try_emplace(incoming.next++).first;
  Arriving& message = place->second;
  message.data = static_cast<std::byte*>(data);
  message.wanted = bytes;
  message.transfer = transfer;
  // What is there already; gaps of it come later.
  if (message.bytes == bytes && !message.copy.empty()) std::memcpy(data, message.copy.data(), message.copy.size());
  message.copy = {};
  if (message.complete()) deliver(incoming, place);
}

void UcxPort::deliver(Incoming& incoming, std::map<uint64_t, Arriving>::iterator message) {
  Transfer* const transfer = message->second.transfer;
  transfer->header = message->second.header;
  transfer->bytes = message->second.bytes;
  incoming.messages.erase(message);
  end(transfer, UCS_OK);
}

// What comes from the network is checked before it is used as an index.
ucs_status_t UcxPort::on_fragment(void* given, const void* header, size_t header_bytes, void* data, size_t length,
                                  const ucp_am_recv_param_t*) {
  auto* self = static_cast<UcxPort*>(given);
  Envelope envelope;
  if (self->closing_ || header_bytes != sizeof envelope) return UCS_OK;
  std::memcpy(&envelope, header, sizeof envelope);
  const auto bytes = static_cast<int64_t>(length);
  const bool sound = envelope.key == self->key_ && envelope.rank < self->peers_.size() && envelope.lane < kLanes &&
                     envelope.offset >= 0 && bytes <= envelope.bytes && envelope.offset <= envelope.bytes - bytes;
  if (!sound) return UCS_OK;
  Incoming& incoming = self->peers_[envelope.rank].incoming[envelope.lane];
  if (envelope.number < incoming.next && !incoming.messages.contains(envelope.number)) return UCS_OK;
  const auto place = incoming.messages.try_emplace(envelope.number).first;
  Arriving& message = place->second;
  message.header = envelope.header;
  message.bytes = envelope.bytes;
  message.come += bytes;
  if (message.transfer == nullptr) {
    const auto end_of_it = static_cast<size_t>(envelope.offset + bytes);
    if (message.copy.size() < end_of_it) message.copy.resize(end_of_it);
    if (bytes > 0) std::memcpy(message.copy.data() + envelope.offset, data, length);
  } else if (message.wanted == message.bytes && bytes > 0) {
    std::memcpy(message.data + envelope.offset, data, length);
  }
  if (message.complete()) deliver(incoming, place);
  return UCS_OK;
}

void UcxPort::on_error(void* given, ucp_ep_h endpoint, ucs_status_t status) {
  auto* self = static_cast<UcxPort*>(given);
  for (Peer& peer : self->peers_) {
    if (peer.endpoint == endpoint) peer.broken = status;
  }
}

// -------------------------------------------------------------------------------------------------------- being driven

// Kept, for as long as the process: nothing moves any more, so nothing touches the memory of failed operations; and
// UCX 1.13 ends the process if a worker is destroyed while it is about to answer a peer that connects.
void UcxPort::retire() {
  static std::mutex mutex;
  static auto* const retired = new std::vector<UcxPort*>();
  Attendant::here().remove(number_, events_);
  const std::lock_guard lock(mutex);
  retired->push_back(this);
}

void UcxPort::drive(bool mine) {
  if (!mine) drain();
  Attendant::here().hand_over(number_, events_, !mine);
}

uint64_t Attendant::add(UcxPort* port, int events) {
  const std::lock_guard lock(mutex_);
  epoll_event event{};
  event.data.u64 = ++last_;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, events, &event);
  ports_[last_] = {port, false};
  return last_;
}

// A port that the attendant drives at this moment is handed over when that has ended: it holds the mutex.
void Attendant::hand_over(uint64_t number, int events, bool to_attendant) {
  const std::lock_guard lock(mutex_);
  ports_[number].ours = to_attendant;
  watch(number, events, to_attendant);
}

void Attendant::remove(uint64_t number, int events) {
  const std::lock_guard lock(mutex_);
  ports_.erase(number);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, events, nullptr);
}

void Attendant::run() {
  while (true) {
    epoll_event event{};
    if (::epoll_wait(epoll_, &event, 1, -1) != 1) continue;
    const std::lock_guard lock(mutex_);
    const auto found = ports_.find(event.data.u64);
    if (stopped_ || found == ports_.end() || !found->second.ours) continue;
    found->second.port->drain();
    watch(found->first, found->second.port->events(), true);
  }
}

void UcxPort::progress(int milliseconds) {
  bool moved = false;
  while (ucp_worker_progress(worker_) != 0) moved = true;
  if (moved || milliseconds == 0) return;
  if (ucp_worker_arm(worker_) != UCS_OK) {  // busy: something has come meanwhile
    ucp_worker_progress(worker_);
    return;
  }
  pollfd entry{events_, POLLIN, 0};
  ::poll(&entry, 1, milliseconds);
  ucp_worker_progress(worker_);
}

}  // namespace
}  // namespace concord::net

extern "C" __attribute__((visibility("default"))) concord::net::Port* concord_net_open_port(
    const concord::net::Opening& opening, char* error, size_t error_bytes) {
  try {
    if (const std::string& interface = concord::net::context(&opening).unusable; !interface.empty()) {
      std::snprintf(
          error, error_bytes,
          "UCX cannot use the network interface %s: it has to be in /sys/class/net (mount sysfs in its network "
          "namespace, as \"ip netns exec\" does) and have an address without a label; UCX_NET_DEVICES chooses "
          "another one",
          interface.c_str());
      return nullptr;
    }
    auto port = std::make_unique<concord::net::UcxPort>(opening);
    std::string why;
    const ucs_status_t status = port->open(opening.sources, &why);
    if (status == UCS_OK) return port.release();
    std::snprintf(error, error_bytes, "UCX cannot be used here: %s",
                  why.empty() ? ucs_status_string(status) : why.c_str());
  } catch (const std::exception& failure) {
    std::snprintf(error, error_bytes, "%s", failure.what());
  }
  return nullptr;
}
