// One rank of a communicator, which may span hosts: executes the commands on its standard input, line by line, and
// replies to each. Started by communicators.py and by the benchmark of several hosts
// (tests/performance/hosts_bench.py).
//   id                       the id of a new communicator, in hexadecimal digits
//   join WORLD RANK ID       joins it
//   setups COUNT             creates a communicator of all ranks, uses and destroys it, COUNT times
//   bits                     a hash of the results of reductions and exchanges of many kinds and sizes on this rank
//   all_reduce BYTES COUNT   microseconds of one such call, over COUNT
//   leave                    destroys the communicator
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "platform/cpp/concord.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kExchanged = concord::DType::kF32;
constexpr std::chrono::seconds kTimeout{30};  // a test that stalls reports the call

std::string to_hex(const concord::UniqueId& id) {
  std::string text;
  char digits[3];
  for (const uint8_t byte : id) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

concord::UniqueId from_hex(const std::string& text) {
  concord::UniqueId id;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    id.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return id;
}

class Rank {
 public:
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "id") return to_hex(concord::create_unique_id(platform_));
    if (command == "join") {
      int32_t world = 0;
      int32_t rank = 0;
      std::string id;
      words >> world >> rank >> id;
      whole_.emplace(device_, world, rank, from_hex(id), concord::CommOptions{"all", kTimeout});
      return "joined";
    }
    if (command == "setups") {
      int64_t count = 0;
      words >> count;
      for (int64_t i = 0; i < count; ++i) set_up(i);
      return "done";
    }
    if (command == "bits") return std::to_string(reduce_everything());
    if (command == "all_reduce") {
      int64_t bytes = 0;
      int64_t count = 0;
      words >> bytes >> count;
      return std::to_string(measure(bytes, count));
    }
    if (command != "leave") throw std::runtime_error("unknown command " + line);
    whole_.reset();
    return "left";
  }

 private:
  // Creates a communicator for one call, or for none: its ranks destroy it as soon as each is done.
  void set_up(int64_t number) {
    std::vector<int32_t> ranks(static_cast<size_t>(whole_->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto name = "set-up " + std::to_string(number);
    const auto comm = whole_->split(ranks, {name, kTimeout});
    if (number % 4 == 0) pass_around(*comm);
    if (number % 4 == 3) return;
    const size_t count = number % 4 == 2 ? 50000 : 10;  // in slices, and through the leaders
    std::vector<int32_t> values(count, comm->rank() + static_cast<int32_t>(number));
    comm->all_reduce(stream_, values.data(), values.data(), static_cast<int64_t>(count), concord::DType::kI32,
                     concord::ReduceOp::kSum);
    const int32_t size = comm->size();
    const int32_t expected = size * (size - 1) / 2 + size * static_cast<int32_t>(number);
    if (values.front() != expected || values.back() != expected) throw std::runtime_error("wrong sum in " + name);
  }

  // Sends every rank's first message to the next rank. Afterwards a rank may wait for those of its host while the next
  // rank on the other host still needs a reply of the engine.
  void pass_around(const concord::Communicator& comm) const {
    const int32_t size = comm.size();
    const int32_t own = comm.rank();
    int32_t got = -1;
    const int32_t before = (own + size - 1) % size;
    const concord_p2p_item items[] = {concord::send_to((own + 1) % size, &own, 1, concord::DType::kI32),
                                      concord::receive_from(before, &got, 1, concord::DType::kI32)};
    comm.batch_p2p(stream_, items);
    if (got != before) throw std::runtime_error("a wrong message");
  }

  // Small reductions go through the leaders; large ones in slices, of which the last are short, and in several steps.
  uint64_t reduce_everything() const {
    using enum concord::DType;
    using enum concord::ReduceOp;
    uint64_t hash = 14695981039346656037u;
    for (const int64_t count : {1, 1001, 65537, 300001}) {
      for (const auto dtype : {kF32, kBF16, kF16, kF64, kI32}) {
        for (const auto op : {kSum, kAvg, kMax}) reduce_both_ways(count, dtype, op, &hash);
      }
      exchange_both_ways(count, &hash);
    }
    return hash;
  }

  // Every rank sends a different number of elements to each rank, in reverse order and with gaps.
  void exchange_both_ways(int64_t count, uint64_t* hash) const {
    const int32_t size = whole_->size(), own = whole_->rank();
    const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements * concord::size_of(kExchanged)); };
    const auto sent = make_values(bytes(size * count), kExchanged);
    std::vector<std::byte> got(sent.size());
    whole_->all_to_all(stream_, sent.data(), got.data(), count, kExchanged);
    add_to_hash(got, hash);
    std::vector<int64_t> send_counts, receive_counts, offsets;
    for (int32_t other = 0; other < size; ++other) {
      send_counts.push_back(count * (own + 2 * other) % (count + 1));
      receive_counts.push_back(count * (other + 2 * own) % (count + 1));
      offsets.push_back((size - 1 - other) * count);
    }
    std::ranges::fill(got, std::byte{0});
    whole_->all_to_all_v(stream_, sent.data(), send_counts.data(), offsets.data(), got.data(), receive_counts.data(),
                         offsets.data(), kExchanged);
    add_to_hash(got, hash);
  }

  void reduce_both_ways(int64_t count, concord::DType dtype, concord::ReduceOp op, uint64_t* hash) const {
    const int32_t size = whole_->size();
    const auto block = static_cast<size_t>(count * concord::size_of(dtype));
    const std::vector<std::byte> values = make_values(block * static_cast<size_t>(size), dtype);
    std::vector<std::byte> result(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(block));
    whole_->all_reduce(stream_, result.data(), result.data(), count, dtype, op);
    add_to_hash(result, hash);
    whole_->all_reduce(stream_, values.data(), result.data(), count, dtype, op);
    add_to_hash(result, hash);
    whole_->reduce_scatter(stream_, values.data(), result.data(), count, dtype, op);
    add_to_hash(result, hash);
    const bool root = whole_->rank() == size - 2;
    whole_->reduce(stream_, values.data(), root ? result.data() : nullptr, count, dtype, op, size - 2);
    if (root) add_to_hash(result, hash);
  }

  // Numbers of many magnitudes, so that the order of a sum affects its bits.
  std::vector<std::byte> make_values(size_t bytes, concord::DType dtype) const {
    std::vector<std::byte> values(bytes);
    const auto width = static_cast<size_t>(concord::size_of(dtype));
    uint64_t state = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(whole_->rank() + 1);
    for (size_t i = 0; i < bytes; i += width) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      uint64_t word = state >> (64 - 8 * width);
      // The two upper bits of the exponent are 01: neither infinite nor NaN, also in sums.
      if (dtype != concord::DType::kI32) word = (word & ~(3ull << (8 * width - 3))) | (1ull << (8 * width - 3));
      std::memcpy(values.data() + i, &word, width);  // the lower bytes of a little-endian number
    }
    return values;
  }

  static void add_to_hash(const std::vector<std::byte>& bytes, uint64_t* hash) {
    for (const std::byte each : bytes) *hash = (*hash ^ static_cast<uint64_t>(each)) * 1099511628211u;
  }

  double measure(int64_t bytes, int64_t count) const {
    std::vector<float> values(static_cast<size_t>(bytes) / sizeof(float), 1.0f);
    const auto reduce = [&] {
      whole_->all_reduce(stream_, values.data(), values.data(), static_cast<int64_t>(values.size()),
                         concord::DType::kF32, concord::ReduceOp::kSum);
    };
    for (int i = 0; i < 2; ++i) reduce();
    whole_->barrier(stream_);
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) reduce();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(count);
  }

  const concord::Platform platform_ = concord::current_platform();
  const concord::Device device_{platform_, 0};
  const concord::Stream stream_ = concord::Stream::of_device(device_);
  std::optional<concord::Communicator> whole_;
};

}  // namespace

int main() {
  try {
    Rank rank;
    for (std::string line; std::getline(std::cin, line);) std::cout << rank.answer(line) << std::endl;
    return 0;
  } catch (const std::exception& error) {
    std::cout << "failed: " << error.what() << std::endl;
    return 1;
  }
}
