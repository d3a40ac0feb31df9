// A hash that only processes with the same secret can compute: SipHash-2-4 (Aumasson and Bernstein, 2012), designed for
// short messages under a key of 128 bits. It proves that a message comes from a process of the job; the secret itself
// is never sent.
//
// Example:
//   const KeyedHash hash("the job's token");
//   const uint64_t seal = hash("a message");
//
// Threads: plain values.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace concord {

class SipHash {
 public:
  SipHash(uint64_t first, uint64_t second)
      : v_{first ^ 0x736f6d6570736575u, second ^ 0x646f72616e646f6du, first ^ 0x6c7967656e657261u,
           second ^ 0x7465646279746573u} {}

  // Returns the hash of |text|. Called once per object.
  uint64_t operator()(std::string_view text) {
    size_t at = 0;
    for (; at + 8 <= text.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, 8);
      take(word);
    }
    uint64_t last = 0;
    std::memcpy(&last, text.data() + at, text.size() - at);
    take(last | uint64_t{text.size()} << 56);
    v_[2] ^= 0xff;
    rounds(4);
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  void take(uint64_t word) {
    v_[3] ^= word;
    rounds(2);
    v_[0] ^= word;
  }
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

class KeyedHash {
 public:
  explicit KeyedHash(std::string_view secret) : first_(SipHash(0, 1)(secret)), second_(SipHash(2, 3)(secret)) {}
  uint64_t operator()(std::string_view text) const { return SipHash(first_, second_)(text); }

 private:
  uint64_t first_, second_;
};

}  // namespace concord
