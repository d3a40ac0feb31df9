// CRC-32C (Castagnoli), as TFRecord files and iSCSI have it.
#pragma once

#include <cstdint>
#include <string_view>

namespace concord {

uint32_t crc32c(std::string_view bytes);

// As TFRecord stores it: rotated and offset, so that the checksum of a text that holds checksums stays a good one.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace concord
