// Messages between the ranks of a communicator during a split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "backends/shm/communicator.h"
#include "platform/sdk/plugin.hpp"

namespace concord::shm {

// One record for each rank: an id, made by the first of each group, and the list of the group.
class SplitOffers {
 public:
  explicit SplitOffers(int32_t parent_size)
      : record_(kUniqueIdBytes + static_cast<int64_t>(sizeof(int32_t)) * (1 + parent_size)),
        bytes_(static_cast<size_t>(record_ * parent_size)) {}

  int64_t record_bytes() const { return record_; }
  std::byte* record(int32_t rank) { return bytes_.data() + rank * record_; }

  // |make_id|(place) writes an id of kUniqueIdBytes.
  template <class MakeId>
  void write(int32_t rank, std::span<const int32_t> ranks, MakeId&& make_id) {
    if (!ranks.empty() && ranks.front() == rank) make_id(record(rank));
    const auto count = static_cast<int32_t>(ranks.size());
    std::memcpy(record(rank) + kUniqueIdBytes, &count, sizeof count);
    if (count > 0) std::memcpy(record(rank) + kUniqueIdBytes + sizeof count, ranks.data(), ranks.size_bytes());
  }
  // The member of |ranks|, the list of |rank|, that gave another list; -1: there is none.
  int32_t find_other_list(int32_t rank, std::span<const int32_t> ranks) {
    for (const int32_t member : ranks) {
      if (!same_list(rank, member)) return member;
    }
    return -1;
  }

 private:
  bool same_list(int32_t a, int32_t b) {
    const auto length = static_cast<size_t>(record_ - kUniqueIdBytes);
    return std::memcmp(record(a) + kUniqueIdBytes, record(b) + kUniqueIdBytes, length) == 0;
  }

  int64_t record_;
  std::vector<std::byte> bytes_;
};

inline std::string different_lists_text(const std::string& name, int32_t rank, int32_t other, size_t count) {
  return sdk::text(
      "communicator '%s': in a split, rank %d lists rank %d in its group of %zu, but the two passed different "
      "lists",
      name.c_str(), rank, other, count);
}

}  // namespace concord::shm
