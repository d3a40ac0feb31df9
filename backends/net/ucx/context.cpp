#include "backends/net/ucx/context.h"

#include <signal.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace concord::net {
namespace {

// A fragment with its envelope fits into one segment of UCX's TCP transport, so that UCX never assembles any; and
// a slice of a reduction (chain.cpp) into one fragment.
constexpr const char* kSegment = "288k";

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

}  // namespace

Context::Context(const Opening& opening) {
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

bool Context::uses(const std::string& interface) const {
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

const Context& context(const Opening* first) {
  static const auto* const one = new Context(*first);
  return *one;
}

}  // namespace concord::net
