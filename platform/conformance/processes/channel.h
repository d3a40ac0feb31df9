// Messages between the parent and a worker, over a socket: a letter, and some bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/framed_socket.hpp"

namespace concord::conformance {

enum class MessageKind : char {
  // from a worker
  kHello = 'H',    // the plugin is open: a PluginInfo
  kRefused = 'X',  // the plugin could not be opened: the loader's message
  kGather = 'G',   // a rank's part of a gather
  kDying = 'D',    // this worker exits on purpose
  kResult = 'R',   // a TestResult
  // from the parent
  kRun = 'T',       // the name of a test
  kGathered = 'A',  // all parts of a gather
  kQuit = 'Q',
};

struct Message {
  MessageKind kind;
  std::string body;
};

// One end of the connection between the parent and a worker. Owns the file descriptor. Not thread-safe.
class Channel {
 public:
  explicit Channel(int fd) : socket_(UniqueFd(fd)) {}

  int fd() const { return socket_.descriptor(); }
  // Waits until the bytes are sent; returns false if the other end has closed.
  bool send(MessageKind kind, const std::string& body) { return socket_.send({.kind = kind}, body); }
  // Waits for the next message; returns false if the other end has closed.
  bool receive(Message& out_message);
  // Takes what has arrived without waiting; returns false if the other end has closed.
  bool pump() { return socket_.fill(); }
  // Returns the next whole message that pump took in |out_message|; returns false if there is none.
  bool next(Message& out_message);

 private:
  struct Header {
    uint32_t bytes = 0;
    MessageKind kind = MessageKind::kQuit;
  };
  FramedSocket<Header> socket_;
};

// A list of strings as one string, for the body of a message.
std::string pack(const std::vector<std::string>& parts);
std::vector<std::string> unpack(const std::string& body);  // throws std::runtime_error if it is invalid

// Facts about the plugin for the parent, which never loads it itself.
struct PluginInfo {
  std::string name, version, label, path;
  int abi_major = 0, abi_minor = 0;
  int devices = 0;
  struct Capability {
    std::string name;
    int64_t value;
    std::string note;
  };
  std::vector<Capability> capabilities;

  int64_t capability(const std::string& wanted) const;
  std::string note(const std::string& wanted) const;
  std::string to_bytes() const;
  static PluginInfo from_bytes(const std::string& bytes);
};

enum class Status { kPass, kFail, kSkip };

// How a test ended, on one rank or on all.
struct TestResult {
  Status status = Status::kPass;
  std::string reason;        // reason of a failure or a skip
  bool unsupported = false;  // skipped because the plugin declares it unsupported, not because of this machine
  double share = -1;         // the largest share of an error bound that was used; -1 if there was none
  double seconds = 0;

  std::string to_bytes() const;
  static TestResult from_bytes(const std::string& bytes);
};

}  // namespace concord::conformance
