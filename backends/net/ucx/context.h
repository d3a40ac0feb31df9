// UCX's context, one per process, and its settings.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "backends/net/transport.h"

namespace concord::net {

// Fragments of at least this size are sent without a copy.
inline constexpr int64_t kDirectBytes = 8 << 10;

struct Context {
  ucp_context_h handle = nullptr;
  ucs_status_t status = UCS_OK;
  std::string unusable;  // the chosen interface, if UCX ignores it: peers would wait forever
  // Whether a completed zero-copy send has left the process, as on TCP, where the kernel holds the data then. Copied
  // fragments and other networks need a flush.
  bool done_means_gone = false;

  explicit Context(const Opening& opening);

  // Whether |interface| is one of UCX's "resources": "tcp/eth0", "rc_mlx5/mlx5_0:1" and similar.
  bool uses(const std::string& interface) const;
};

// Returns the context of the process, which is never destroyed: ports may outlive any owner. |first|: settings of the
// first port, which creates the context; all ports use the same network.
const Context& context(const Opening* first = nullptr);

}  // namespace concord::net
