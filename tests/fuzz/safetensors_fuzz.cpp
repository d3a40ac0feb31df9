// Any bytes as a safetensors file: either rejected with a ConfigError, or a header whose offsets can be used without a
// check.
#include <cstdint>
#include <optional>
#include <set>

#include "core/base/config_error.h"
#include "core/safetensors/writer.h"
#include "tests/fuzz/check.h"

namespace concord::fuzz {
namespace {

using safetensors::Header;
using safetensors::TensorInfo;

constexpr const char* kFile = "fuzz.safetensors";

void check_header(const Header& header, uint64_t data_bytes) {
  uint64_t end = 0;
  std::set<std::string> names;
  for (const TensorInfo& tensor : header.tensors) {
    check(names.insert(tensor.name).second, "a name stands once");
    check(tensor.begin == end, "tensors touch each other");
    check(tensor.begin <= tensor.end && tensor.end <= data_bytes, "tensors lie within the data");
    int64_t elements = 1;
    for (const int64_t size : tensor.shape)
      check(size >= 0 && !__builtin_mul_overflow(elements, size, &elements), "the elements can be counted");
    check(elements == tensor.elements(), "the shape has the elements that the bytes have");
    end = tensor.end;
  }
  check(end == data_bytes, "all data belongs to a tensor");
}

// Returns nullopt if |bytes| are rejected. |length| is that of the header; nullopt: read it from the first bytes.
std::optional<Header> parse(std::string_view bytes, std::optional<uint64_t>& length) {
  try {
    if (!length) length = safetensors::header_length(bytes.substr(0, safetensors::kLengthBytes), bytes.size(), kFile);
    return safetensors::parse_header(bytes.substr(safetensors::kLengthBytes, *length),
                                     bytes.size() - safetensors::kLengthBytes - *length, kFile);
  } catch (const ConfigError& error) {
    check_error(error.what(), kFile);
    return std::nullopt;
  }
}

// Accepted headers survive a round trip.
void check_round_trip(const Header& header, uint64_t data_bytes) {
  const safetensors::FilePlan plan =
      safetensors::plan_file({header.tensors.begin(), header.tensors.end()}, header.metadata, kFile);
  const Header again =
      safetensors::parse_header(std::string_view(plan.head).substr(safetensors::kLengthBytes), data_bytes, kFile);
  check(again.metadata == header.metadata, "the metadata is the same");
  check(again.tensors.size() == header.tensors.size(), "the number of tensors is the same");
  for (const TensorInfo& tensor : header.tensors) {
    const TensorInfo& other = plan.at(tensor.name);
    check(other.dtype == tensor.dtype && other.shape == tensor.shape, "the tensor is the same");
  }
}

void try_bytes(std::string_view bytes, std::optional<uint64_t> length) {
  const std::optional<Header> header = parse(bytes, length);
  if (!header) return;
  const uint64_t data_bytes = bytes.size() - safetensors::kLengthBytes - *length;
  check_header(*header, data_bytes);
  check_round_trip(*header, data_bytes);
}

}  // namespace
}  // namespace concord::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  fuzz::try_bytes(bytes, std::nullopt);
  // The length in the first 8 bytes rarely matches a mutation of the rest, so there is a second try with a matching
  // one: bytes up to the last brace are the header.
  const size_t brace = bytes.rfind('}');
  if (brace != std::string_view::npos && brace >= safetensors::kLengthBytes)
    fuzz::try_bytes(bytes, brace + 1 - safetensors::kLengthBytes);
  return 0;
}
