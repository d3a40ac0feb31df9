// A hash that only those who know the job's token can compute: SipHash-2-4 (Aumasson and Bernstein, 2012), made for
// short messages under a secret key of 128 bits. It shows that a message comes from a process of the job; the token
// itself is never sent.
//
// Example:
//   const KeyedHash hash("the job's token");
//   const uint64_t seal = hash("a message");
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <string_view>

namespace concord {

class KeyedHash {
 public:
  explicit KeyedHash(std::string_view token);
  uint64_t operator()(std::string_view text) const;

 private:
  uint64_t first_, second_;
};

// Takes the same time wherever they differ, so that the time does not help to guess.
bool is_same_text(std::string_view a, std::string_view b);

}  // namespace concord
