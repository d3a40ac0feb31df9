#include "platform/loader/error.h"

#include <utility>

#include "platform/loader/text.h"

namespace concord {
namespace {

struct NamedStatus {
  concord_status status;
  const char* name;
};

constexpr NamedStatus kStatuses[] = {
    {CONCORD_STATUS_OK, "OK"},
    {CONCORD_STATUS_INVALID_ARGUMENT, "INVALID_ARGUMENT"},
    {CONCORD_STATUS_UNIMPLEMENTED, "UNIMPLEMENTED"},
    {CONCORD_STATUS_UNAVAILABLE, "UNAVAILABLE"},
    {CONCORD_STATUS_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
    {CONCORD_STATUS_TIMEOUT, "TIMEOUT"},
    {CONCORD_STATUS_PEER_LOST, "PEER_LOST"},
    {CONCORD_STATUS_ABORTED, "ABORTED"},
    {CONCORD_STATUS_FAILED_PRECONDITION, "FAILED_PRECONDITION"},
    {CONCORD_STATUS_ABI_MISMATCH, "ABI_MISMATCH"},
    {CONCORD_STATUS_VENDOR_ERROR, "VENDOR_ERROR"},
    {CONCORD_STATUS_INTERNAL, "INTERNAL"},
};

std::string call_sentence(concord_status status, const Error::Call& call) {
  return loader::cat(call.call, "(", call.arguments, ") of plugin '", call.plugin, "' failed with ",
                     status_name(status), ": ", call.detail.empty() ? "the plugin gave no reason" : call.detail);
}

}  // namespace

std::string status_name(concord_status status) {
  for (const NamedStatus& known : kStatuses) {
    if (known.status == status) return known.name;
  }
  return loader::cat("unknown status ", status);
}

std::optional<concord_status> status_from_name(std::string_view name) {
  for (const NamedStatus& known : kStatuses) {
    if (known.name == name) return known.status;
  }
  return std::nullopt;
}

std::vector<std::string> status_names() {
  std::vector<std::string> names;
  for (const NamedStatus& known : kStatuses) names.emplace_back(known.name);
  return names;
}

Error::Error(concord_status status, const std::string& sentence) : std::runtime_error(sentence), status_(status) {
  call_.detail = sentence;
}

Error::Error(concord_status status, Call call)
    : std::runtime_error(call_sentence(status, call)), status_(status), call_(std::move(call)) {}

}  // namespace concord
