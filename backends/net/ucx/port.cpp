#include "backends/net/ucx/port.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>

#include "backends/net/ucx/attendant.h"
#include "backends/net/ucx/context.h"

namespace concord::net {
namespace {

constexpr unsigned kFragment = 1;  // the active message's number
// A fragment with its envelope fits into one segment of UCX's TCP transport (context.cpp).
constexpr int64_t kFragmentBytes = 264 << 10;

// The fragments of a message have about one length: a short one would be copied.
int64_t fragment_bytes(int64_t message_bytes) {
  const int64_t count = (message_bytes + kFragmentBytes - 1) / kFragmentBytes;
  constexpr int64_t kAlign = 64;
  return count <= 1 ? kFragmentBytes : ((message_bytes + count - 1) / count + kAlign - 1) / kAlign * kAlign;
}

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

}  // namespace

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
    *error = std::string("the kernel rejects a filter for UCX's port (SO_ATTACH_FILTER): ") + std::strerror(errno);
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
  // Fragments that have arrived; missing ones follow.
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

// The worker is kept until the process exits and no longer driven, so that nothing touches the memory of failed
// operations. UCX 1.13 aborts the process if a worker is destroyed while it is about to answer a peer that connects.
void UcxPort::retire() {
  static std::mutex mutex;
  static auto* const retired = new std::vector<UcxPort*>();
  Attendant::here().remove(number_, events_);
  const std::lock_guard lock(mutex);
  retired->push_back(this);
}

void UcxPort::drive(bool mine) {
  if (!mine) drain();
  Attendant::here().set_driver(number_, events_, !mine);
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

}  // namespace concord::net

extern "C" __attribute__((visibility("default"))) concord::net::Port* concord_net_open_port(
    const concord::net::Opening& opening, char* error, size_t error_bytes) {
  try {
    if (const std::string& interface = concord::net::context(&opening).unusable; !interface.empty()) {
      std::snprintf(
          error, error_bytes,
          "UCX cannot use the network interface %s: it must be in /sys/class/net (mount sysfs in its network "
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
