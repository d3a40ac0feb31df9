#include "backends/net/source_filter.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

namespace concord::net {
namespace {

using Words = std::array<uint32_t, 4>;  // as the filter loads them
using Program = std::vector<sock_filter>;

constexpr uint32_t kHeader = static_cast<uint32_t>(SKF_NET_OFF);  // start of the IP header; offset 0 is the TCP header
constexpr uint32_t kSource4 = kHeader + 12, kSource6 = kHeader + 8;
constexpr uint32_t kTake = 0xffffffff, kDrop = 0;
constexpr size_t kMax4 = 256, kMax6 = 64;

Words words_of(const Address& address) {
  Words words{};
  std::memcpy(words.data(), address.data(), address.size());
  for (uint32_t& word : words) word = ntohl(word);
  return words;
}

bool is_mapped_v4(const Words& words) { return words[0] == 0 && words[1] == 0 && words[2] == 0xffff; }

void add_v4(std::span<const Words> sources, Program* program) {
  std::set<uint32_t> wanted;
  uint32_t mask = ~uint32_t{0};
  for (int bits = 32;; bits -= 8) {
    mask = bits > 0 ? ~uint32_t{0} << (32 - bits) : 0;
    wanted.clear();
    for (const Words& source : sources) wanted.insert(source[3] & mask);
    if (wanted.size() <= kMax4) break;
  }
  program->push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSource4));
  program->push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
  for (const uint32_t source : wanted) {
    program->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, source, 0, 1));
    program->push_back(BPF_STMT(BPF_RET | BPF_K, kTake));
  }
  program->push_back(BPF_STMT(BPF_RET | BPF_K, kDrop));
}

void add_v6(std::span<const Words> sources, Program* program) {
  std::set<Words> wanted;
  size_t count = 4;  // words that are compared
  for (;; --count) {
    wanted.clear();
    for (Words source : sources) {
      std::fill(source.begin() + static_cast<ptrdiff_t>(count), source.end(), 0);
      wanted.insert(source);
    }
    if (wanted.size() <= kMax6) break;
  }
  for (const Words& source : wanted) {
    for (size_t i = 0; i < count; ++i) {
      program->push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSource6 + static_cast<uint32_t>(4 * i)));
      const auto rest = static_cast<uint8_t>(2 * (count - 1 - i) + 1);  // to the next address
      program->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, source[i], 0, rest));
    }
    program->push_back(BPF_STMT(BPF_RET | BPF_K, kTake));
  }
  program->push_back(BPF_STMT(BPF_RET | BPF_K, kDrop));
}

}  // namespace

bool admit_only(int listener, std::span<const Address> sources) {
  std::vector<Words> v4, v6;
  for (const Address& source : sources) {
    const Words words = words_of(source);
    (is_mapped_v4(words) ? v4 : v6).push_back(words);
  }
  Program for_v4;
  add_v4(v4, &for_v4);
  Program program = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kHeader), BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
                     BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 1, 0),
                     BPF_STMT(BPF_JMP | BPF_JA, static_cast<uint32_t>(for_v4.size()))};
  program.insert(program.end(), for_v4.begin(), for_v4.end());
  add_v6(v6, &program);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

}  // namespace concord::net
