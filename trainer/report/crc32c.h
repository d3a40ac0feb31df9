// CRC-32C (Castagnoli), as used by TFRecord files and iSCSI.
#pragma once

#include <cstdint>
#include <string_view>

namespace concord {

uint32_t crc32c(std::string_view bytes);

// Returns the checksum as stored in TFRecord files: rotated and offset, so that a checksum of data that contains
// checksums is still good.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace concord
