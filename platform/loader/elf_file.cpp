#include "platform/loader/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "platform/base/unique_fd.hpp"
#include "platform/loader/text.h"

namespace concord::loader {
namespace {

using Header = ElfW(Ehdr);
using Segment = ElfW(Phdr);

class File {
 public:
  explicit File(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}

  bool is_open() const { return static_cast<bool>(descriptor_); }
  bool read(void* into, size_t bytes, uint64_t offset) const {
    return pread(descriptor_.get(), into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  }

 private:
  UniqueFd descriptor_;
};

std::string machine_name(unsigned machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "aarch64";
    case EM_386: return "x86 (32 bit)";
    case EM_ARM: return "arm (32 bit)";
    case EM_PPC64: return "ppc64";
    case EM_RISCV: return "riscv";
    case EM_S390: return "s390";
    case 258: return "loongarch";
    default: return cat("machine number ", machine);
  }
}

#if defined(__x86_64__)
constexpr unsigned kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kThisMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr unsigned kThisMachine = EM_RISCV;
#else
#error "name this architecture's ELF machine number here"
#endif
constexpr unsigned char kThisData = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
constexpr unsigned char kThisClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;

const char* class_name(unsigned char value) { return value == ELFCLASS32 ? "32" : value == ELFCLASS64 ? "64" : "?"; }
const char* order_name(unsigned char value) { return value == ELFDATA2MSB ? "big" : "little"; }

// What e_ident says, before later fields can be trusted.
std::string why_not_identity(const unsigned char* identity) {
  if (identity[EI_CLASS] != kThisClass) {
    return cat("it is built for ", class_name(identity[EI_CLASS]), "-bit programs, this one has ",
               class_name(kThisClass), " bits");
  }
  if (identity[EI_DATA] != kThisData) {
    return cat("it is built for ", order_name(identity[EI_DATA]), "-endian machines, this one is ",
               order_name(kThisData), "-endian");
  }
  return "";
}

std::string why_not_header(const Header& header) {
  if (header.e_machine != kThisMachine) {
    return cat("it is built for ", machine_name(header.e_machine), ", this machine is ", machine_name(kThisMachine));
  }
  if (header.e_type != ET_DYN) {
    const char* what = header.e_type == ET_EXEC   ? "a program"
                       : header.e_type == ET_REL  ? "an object file"
                       : header.e_type == ET_CORE ? "a core dump"
                                                  : "an ELF file of an unknown type";
    return cat("it is ", what, ", not a shared library");
  }
  return "";
}

std::string why_not_complete(const File& file, const Header& header, uint64_t size) {
  const std::string cut = cat("the ELF file is truncated: it has ", size, " bytes, fewer than its headers say");
  if (header.e_phentsize != sizeof(Segment) || header.e_phnum == 0) return "its ELF program headers are invalid";
  std::vector<Segment> segments(header.e_phnum);
  if (!file.read(segments.data(), segments.size() * sizeof(Segment), header.e_phoff)) return cut;
  for (const Segment& segment : segments) {
    if (segment.p_type != PT_LOAD && segment.p_type != PT_DYNAMIC) continue;
    if (segment.p_offset > size || segment.p_filesz > size - segment.p_offset) return cut;
  }
  // Linkers write the section headers last, so a copy that stopped early lacks them even if it has every segment.
  const uint64_t sections = uint64_t{header.e_shnum} * header.e_shentsize;
  if (header.e_shoff > size || sections > size - header.e_shoff) return cut;
  return "";
}

}  // namespace

std::string why_not_loadable(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return errno == ENOENT ? "no such file" : std::strerror(errno);
  if (S_ISDIR(status.st_mode)) return "it is a folder, not a file";
  if (!S_ISREG(status.st_mode)) return "it is not a regular file";
  const File file(path);
  if (!file.is_open()) return cat("it cannot be read: ", std::strerror(errno));
  const auto size = static_cast<uint64_t>(status.st_size);
  unsigned char identity[EI_NIDENT] = {};
  if (size == 0) return "the file is empty";
  if (!file.read(identity, SELFMAG, 0) || std::memcmp(identity, ELFMAG, SELFMAG) != 0) {
    return "it is not an ELF file, so not a shared library";
  }
  if (!file.read(identity, EI_NIDENT, 0)) return cat("the ELF header is truncated: the file has ", size, " bytes");
  if (std::string why = why_not_identity(identity); !why.empty()) return why;
  Header header{};
  if (!file.read(&header, sizeof header, 0)) return cat("the ELF header is truncated: the file has ", size, " bytes");
  if (std::string why = why_not_header(header); !why.empty()) return why;
  return why_not_complete(file, header, size);
}

}  // namespace concord::loader
