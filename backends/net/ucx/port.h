// Ports on UCX (ucp): active messages with a header, over TCP or whatever network UCX finds on the machine.
//
// The process has one context, and every port its own worker: communicators share no state, and closing one does not
// disturb the others. An endpoint is created at the first send to a peer. A worker is destroyed only when all peers
// have left: UCX 1.13 loses messages if a worker is destroyed while a peer connects to it (docs/backends.md).
//
// A message is sent as fragments, each an eager active message. UCX's rendezvous protocol is not used: in it the sender
// waits for an answer of the receiver, which may have received everything it waits for and be busy elsewhere. A
// fragment's header names its message and its offset, so nothing depends on the order of arrival.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backends/net/source_filter.h"
#include "backends/net/transport.h"

namespace concord::net {

// The header of a fragment.
struct Envelope {
  uint64_t key = 0;   // of the communicator
  uint32_t rank = 0;  // of the sender
  uint32_t lane = 0;
  uint64_t number = 0;  // sequence number of the message for this sender and lane
  int64_t bytes = 0;    // of the whole message
  int64_t offset = 0;   // of this fragment
  Header header;
};

class UcxPort final : public Port {
 public:
  explicit UcxPort(const Opening& opening)
      : rank_(opening.rank), key_(opening.key), peers_(static_cast<size_t>(opening.world)) {}
  ~UcxPort() override;

  // Creates the worker. Sets |error| to a message if the cause of a failure is not UCX.
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
  // Processes all events and arms the event descriptor for the next one. Called by the thread that drives the port.
  void drain() {
    do {
      while (ucp_worker_progress(worker_) != 0) {
      }
    } while (ucp_worker_arm(worker_) == UCS_ERR_BUSY);
  }

 private:
  // A message that has not arrived completely, or for which no receive has been posted.
  struct Arriving {
    Header header;
    int64_t bytes = -1;           // length of the message; -1: nothing has arrived
    int64_t come = 0;             // bytes that have arrived
    std::vector<std::byte> copy;  // data that arrived before the receive was posted
    // The posted receive.
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
    bool needs_flush = false;  // a send may be done whose data has not left this process
    std::array<uint64_t, kLanes> sent{};
    std::array<Incoming, kLanes> incoming;
  };
  // State that must live until UCX has sent the fragments of a message.
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
  // Whether |listener| is the socket that peers connect to: its port is part of the worker's address.
  bool is_part_of_address(int listener) const;
  // Completes the receive of |message|, which has arrived completely.
  static void deliver(Incoming& incoming, std::map<uint64_t, Arriving>::iterator message);

  const int32_t rank_;
  const uint64_t key_;
  std::vector<Peer> peers_;
  ucp_worker_h worker_ = nullptr;
  ucp_address_t* address_ = nullptr;
  size_t address_bytes_ = 0;
  int events_ = -1;
  uint64_t number_ = 0;  // this port's number in the Attendant
  bool closing_ = false;
};

}  // namespace concord::net
