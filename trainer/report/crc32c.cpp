#include "trainer/report/crc32c.h"

#include <array>

namespace concord {
namespace {

constexpr uint32_t kReversedPolynomial = 0x82f63b78;
constexpr uint32_t kMask = 0xa282ead8;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value % 2 == 1 ? kReversedPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = 0xffffffff;
  for (const char byte : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~value;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + kMask;
}

}  // namespace concord
