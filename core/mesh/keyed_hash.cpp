#include "core/mesh/keyed_hash.h"

#include <array>
#include <bit>
#include <cstring>

namespace concord {
namespace {

struct SipKey {
  uint64_t first, second;
};

class SipState {
 public:
  explicit SipState(const SipKey& key)
      : v_{key.first ^ 0x736f6d6570736575u, key.second ^ 0x646f72616e646f6du, key.first ^ 0x6c7967656e657261u,
           key.second ^ 0x7465646279746573u} {}

  void take(uint64_t word) {
    v_[3] ^= word;
    rounds(2);
    v_[0] ^= word;
  }
  uint64_t finish() {
    v_[2] ^= 0xff;
    rounds(4);
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      half(0, 1, 13, 2, 3, 16);
      half(2, 1, 17, 0, 3, 21);
    }
  }
  // One half of a round: two sums, the first of which is then rotated by half a word.
  void half(size_t a, size_t b, int turn_b, size_t c, size_t d, int turn_d) {
    v_[a] += v_[b];
    v_[b] = std::rotl(v_[b], turn_b) ^ v_[a];
    v_[c] += v_[d];
    v_[d] = std::rotl(v_[d], turn_d) ^ v_[c];
    v_[a] = std::rotl(v_[a], 32);
  }

  std::array<uint64_t, 4> v_;
};

uint64_t sip_hash(const SipKey& key, std::string_view text) {
  SipState state(key);
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    state.take(word);
  }
  uint64_t last = 0;
  std::memcpy(&last, text.data() + at, text.size() - at);
  state.take(last | uint64_t{text.size()} << 56);
  return state.finish();
}

}  // namespace

KeyedHash::KeyedHash(std::string_view token) : first_(sip_hash({0, 1}, token)), second_(sip_hash({2, 3}, token)) {}

uint64_t KeyedHash::operator()(std::string_view text) const { return sip_hash({first_, second_}, text); }

bool is_same_text(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace concord
