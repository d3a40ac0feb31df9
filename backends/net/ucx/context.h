// UCX's context, one per process, and its settings.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "backends/net/transport.h"

namespace concord::net {

// Fragments from this size on are sent from where they are, without a copy.
inline constexpr int64_t kDirectBytes = 8 << 10;

struct Context {
  ucp_context_h handle = nullptr;
  ucs_status_t status = UCS_OK;
  std::string unusable;  // the chosen interface, if UCX ignores it: peers would wait forever
  // On TCP, a direct fragment that is done is in the kernel; copied ones, and other networks, need a flush.
  bool done_means_gone = false;

  explicit Context(const Opening& opening);

  // Whether |interface| is among the "tcp/eth0", "rc_mlx5/mlx5_0:1", ... that UCX has found, one "resource" each.
  bool uses(const std::string& interface) const;
};

// Lives as long as the process: ports may outlive any owner. |first|: for the first port; all have the same network.
const Context& context(const Opening* first = nullptr);

}  // namespace concord::net
