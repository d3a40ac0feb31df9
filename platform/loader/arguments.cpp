#include "platform/loader/arguments.h"

#include "platform/sdk/dtypes.hpp"

namespace concord::loader {
namespace {

const char* copy_kind_name(int64_t kind) {
  switch (kind) {
    case CONCORD_COPY_HOST_TO_HOST: return "host_to_host";
    case CONCORD_COPY_HOST_TO_DEVICE: return "host_to_device";
    case CONCORD_COPY_DEVICE_TO_HOST: return "device_to_host";
    case CONCORD_COPY_DEVICE_TO_DEVICE: return "device_to_device";
    default: return "unknown";
  }
}

std::string name_or_number(std::string_view name, int64_t value) {
  return name == "unknown" ? cat(value) : std::string(name);
}

}  // namespace

std::string integer_text(std::string_view name, int64_t value) {
  const auto code = static_cast<int32_t>(value);
  if (name == "dtype") return name_or_number(sdk::dtype_name(code), value);
  if (name == "reduce") return name_or_number(sdk::reduce_name(code), value);
  if (name == "copy_kind") return name_or_number(copy_kind_name(value), value);
  return cat(value);
}

std::string config_text(const concord_comm_config* config) {
  if (config == nullptr) return "null";
  if (config->struct_size < sizeof *config) return cat("{struct_size=", config->struct_size, "}");
  return cat("{name=", config->name != nullptr ? config->name : "null", ", timeout_ms=", config->timeout_ms, "}");
}

std::string request_text(const concord_rng_request* request) {
  if (request == nullptr) return "null";
  if (request->struct_size < sizeof *request) return cat("{struct_size=", request->struct_size, "}");
  return cat("{kind=", request->kind, ", dtype=", integer_text("dtype", request->dtype),
             ", destination=", argument_text("destination", request->destination), ", count=", request->count,
             ", key=", request->key, ", subsequence=", request->subsequence, ", offset=", request->offset,
             ", low=", request->low, ", high=", request->high, ", integer_low=", request->integer_low,
             ", integer_high=", request->integer_high, ", run_length=", request->run_length,
             ", run_stride=", request->run_stride, "}");
}

}  // namespace concord::loader
