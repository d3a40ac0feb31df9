#include "trainer/cli/conform/zip_file.h"

#include <zlib.h>

#include <limits>
#include <span>
#include <stdexcept>

#include "core/checkpoint/crc32.h"

namespace concord {
namespace {

// PKWARE's APPNOTE: little endian, signatures "PK" and two numbers.
constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryEntry = 0x02014b50, kEndOfDirectory = 0x06054b50;
constexpr uint16_t kVersion = 20, kDeflated = 8, kUtf8Names = 1 << 11;
constexpr uint16_t kMidnight = 0, kFirstDay = (1 << 5) | 1;  // 1980-01-01: archives of equal files are equal

void put16(std::string* to, uint64_t value) {
  for (int shift = 0; shift < 16; shift += 8) to->push_back(static_cast<char>(value >> shift));
}
void put32(std::string* to, uint64_t value) {
  put16(to, value & 0xffff);
  put16(to, value >> 16);
}

uint32_t checked32(uint64_t value, const std::string& name) {
  if (value < std::numeric_limits<uint32_t>::max()) return static_cast<uint32_t>(value);
  throw std::runtime_error("a zip archive cannot hold " + name + ": it would have more than 4 GiB");
}

// Raw deflate, without zlib's header.
std::string deflated(std::string_view content) {
  z_stream stream{};
  if (::deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("zlib cannot compress: too little memory");
  }
  std::string result(::deflateBound(&stream, static_cast<uLong>(content.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  const int code = ::deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  ::deflateEnd(&stream);
  if (code != Z_STREAM_END) throw std::runtime_error("zlib cannot compress: code " + std::to_string(code));
  return result;
}

}  // namespace

void ZipFile::add(const std::string& name, std::string_view content) {
  checked32(content.size(), name);
  const std::string packed = deflated(content);
  checked32(bytes_.size() + packed.size() + name.size(), name);
  const Entry entry{name, crc32(std::as_bytes(std::span(content))), static_cast<uint32_t>(packed.size()),
                    static_cast<uint32_t>(content.size()), static_cast<uint32_t>(bytes_.size())};
  put32(&bytes_, kLocalHeader);
  for (const uint16_t value : {kVersion, kUtf8Names, kDeflated, kMidnight, kFirstDay}) put16(&bytes_, value);
  for (const uint32_t value : {entry.checksum, entry.deflated_bytes, entry.bytes}) put32(&bytes_, value);
  put16(&bytes_, name.size());
  put16(&bytes_, 0);  // no extra field
  bytes_ += name + packed;
  entries_.push_back(entry);
}

std::string ZipFile::archive() const {
  std::string directory;
  for (const Entry& entry : entries_) {
    put32(&directory, kDirectoryEntry);
    for (const uint16_t value : {kVersion, kVersion, kUtf8Names, kDeflated, kMidnight, kFirstDay}) {
      put16(&directory, value);
    }
    for (const uint32_t value : {entry.checksum, entry.deflated_bytes, entry.bytes}) put32(&directory, value);
    put16(&directory, entry.name.size());
    for (int field = 0; field < 4; ++field) put16(&directory, 0);  // extra field, comment, disk, internal attributes
    put32(&directory, 0);                                          // external attributes
    put32(&directory, entry.offset);
    directory += entry.name;
  }
  std::string end;
  put32(&end, kEndOfDirectory);
  for (const uint64_t value : {uint64_t{0}, uint64_t{0}, uint64_t{entries_.size()}, uint64_t{entries_.size()}}) {
    put16(&end, value);
  }
  put32(&end, directory.size());
  put32(&end, checked32(bytes_.size(), "its directory"));
  put16(&end, 0);  // no comment
  return bytes_ + directory + end;
}

}  // namespace concord
