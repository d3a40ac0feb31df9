#include "platform/conformance/processes/channel.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace concord::conformance {
namespace {

constexpr size_t kMaxBody = std::numeric_limits<uint32_t>::max();  // parent and worker trust each other

}  // namespace

bool Channel::next(Message& out_message) {
  auto message = socket_.next(kMaxBody);
  if (message) out_message = {message->header.kind, std::move(message->body)};
  return message.has_value();
}

bool Channel::receive(Message& out_message) {
  auto message = socket_.receive(kMaxBody);
  if (message) out_message = {message->header.kind, std::move(message->body)};
  return message.has_value();
}

std::string pack(const std::vector<std::string>& parts) {
  std::string body;
  for (const std::string& part : parts) {
    const auto length = static_cast<uint32_t>(part.size());
    body.append(reinterpret_cast<const char*>(&length), sizeof length);
    body += part;
  }
  return body;
}

std::vector<std::string> unpack(const std::string& body) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < body.size();) {
    uint32_t length = 0;
    if (body.size() - at < sizeof length) throw std::runtime_error("a message of the kit is truncated");
    std::memcpy(&length, body.data() + at, sizeof length);
    at += sizeof length;
    if (body.size() - at < length) throw std::runtime_error("a message of the kit is truncated");
    parts.push_back(body.substr(at, length));
    at += length;
  }
  return parts;
}

int64_t PluginInfo::capability(const std::string& wanted) const {
  for (const Capability& known : capabilities) {
    if (known.name == wanted) return known.value;
  }
  return 0;
}

std::string PluginInfo::note(const std::string& wanted) const {
  for (const Capability& known : capabilities) {
    if (known.name == wanted && !known.note.empty()) return known.note;
  }
  return "the plugin does not list it";
}

std::string PluginInfo::to_bytes() const {
  std::vector<std::string> parts = {
      name, version, label, path, std::to_string(abi_major), std::to_string(abi_minor), std::to_string(devices)};
  for (const Capability& known : capabilities) {
    parts.insert(parts.end(), {known.name, std::to_string(known.value), known.note});
  }
  return pack(parts);
}

PluginInfo PluginInfo::from_bytes(const std::string& bytes) {
  const std::vector<std::string> parts = unpack(bytes);
  if (parts.size() < 7 || (parts.size() - 7) % 3 != 0)
    throw std::runtime_error("a hello message of the kit is truncated");
  PluginInfo info;
  info.name = parts[0];
  info.version = parts[1];
  info.label = parts[2];
  info.path = parts[3];
  info.abi_major = std::atoi(parts[4].c_str());
  info.abi_minor = std::atoi(parts[5].c_str());
  info.devices = std::atoi(parts[6].c_str());
  for (size_t i = 7; i < parts.size(); i += 3) {
    info.capabilities.push_back({parts[i], std::atoll(parts[i + 1].c_str()), parts[i + 2]});
  }
  return info;
}

std::string TestResult::to_bytes() const {
  return pack({std::to_string(static_cast<int>(status)), reason, unsupported ? "1" : "0", std::to_string(share)});
}

TestResult TestResult::from_bytes(const std::string& bytes) {
  const std::vector<std::string> parts = unpack(bytes);
  if (parts.size() != 4) throw std::runtime_error("a result message of the kit is truncated");
  TestResult result;
  result.status = static_cast<Status>(std::atoi(parts[0].c_str()));
  result.reason = parts[1];
  result.unsupported = parts[2] == "1";
  result.share = std::atof(parts[3].c_str());
  return result;
}

}  // namespace concord::conformance
