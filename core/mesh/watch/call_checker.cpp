#include "core/mesh/watch/call_checker.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/quoted.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

constexpr size_t kMaxCall = 500;  // bytes of another rank's call in a message
constexpr std::string_view kSending = " sending ";
constexpr std::string_view kReceiving = " receiving ";

// "3,4" -> 3, 4.
std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin < text.size(); begin = std::min(text.find(',', begin), text.size() - 1) + 1) {
    numbers.push_back(std::stoll(text.substr(begin)));
  }
  return numbers;
}

std::string item_text(const concord_p2p_item& item) {
  return fmt::format("{} x {}", to_string(static_cast<DType>(item.dtype)), item.count);
}

}  // namespace

CallChecker::CallChecker(std::shared_ptr<Store> store, Peers& peers, Options options)
    : store_(std::move(store)), peers_(peers), options_(std::move(options)) {}

std::string CallChecker::key(int64_t sequence, int64_t index) const {
  return fmt::format("check/{}/{}/{}/{}", options_.name, options_.ranks.first(), sequence, index);
}

const std::string& CallChecker::shown(const CallSignature& signature) const {
  return signature.group.empty() ? options_.name : signature.group;
}

std::vector<std::string> CallChecker::exchange(int64_t sequence, const CallSignature& signature,
                                               const std::string& mine) {
  store_->set(key(sequence, options_.index), mine);
  std::vector<std::string> all;
  for (int64_t i = 0; i < options_.ranks.size(); ++i) {
    try {
      all.push_back(peers_.await(key(sequence, i), options_.ranks[i], options_.timeout));
    } catch (const Error& error) {
      if (error.status() != CONCORD_STATUS_TIMEOUT) throw;
      throw Error(
          CONCORD_STATUS_TIMEOUT,
          fmt::format("rank {} has not made call {} of group {} within {} ms; rank {} makes {}", options_.ranks[i],
                      sequence, shown(signature), options_.timeout.count(), options_.ranks[options_.index], mine));
    }
  }
  // All ranks are at |sequence|, so none still reads the previous call.
  if (sequence > 1) store_->remove(key(sequence - 1, options_.index));
  return all;
}

void CallChecker::differ(int64_t sequence, const CallSignature& signature, int64_t index, const std::string& theirs,
                         const std::string& mine) const {
  throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
              fmt::format("call {} of group {} differs: rank {} makes {}, rank {} {}; all ranks of a group must make "
                          "the same calls in the same order",
                          sequence, shown(signature), options_.ranks[options_.index], mine, options_.ranks[index],
                          one_line(theirs, kMaxCall)));
}

void CallChecker::check(int64_t sequence, const CallSignature& signature) {
  const std::string mine = signature.to_string();
  const std::vector<std::string> all = exchange(sequence, signature, mine);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != mine) differ(sequence, signature, static_cast<int64_t>(i), all[i], mine);
  }
}

void CallChecker::check(int64_t sequence, const CallSignature& signature, std::span<const int64_t> send_counts,
                        std::span<const int64_t> recv_counts) {
  const std::string call = fmt::format("{} {}", to_string(signature.op), to_string(signature.dtype));
  const std::vector<std::string> all = exchange(
      sequence, signature,
      fmt::format("{}{}{}{}{}", call, kSending, fmt::join(send_counts, ","), kReceiving, fmt::join(recv_counts, ",")));
  std::vector<std::vector<int64_t>> sent;
  std::vector<std::vector<int64_t>> expected;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t sending = all[i].find(kSending);
    const size_t receiving = all[i].find(kReceiving);
    if (all[i].substr(0, sending) != call) differ(sequence, signature, static_cast<int64_t>(i), all[i], call);
    const size_t begin = sending + kSending.size();
    sent.push_back(numbers_in(all[i].substr(begin, receiving - begin)));
    expected.push_back(numbers_in(all[i].substr(receiving + kReceiving.size())));
  }
  // Every pair, so that every rank sees the error, not only the two involved.
  for (size_t from = 0; from < all.size(); ++from) {
    for (size_t to = 0; to < all.size(); ++to) {
      if (sent[from].at(to) == expected[to].at(from)) continue;
      throw Error(
          CONCORD_STATUS_INVALID_ARGUMENT,
          fmt::format("call {} of group {}, {}, does not match: rank {} sends {} elements to rank {}, which expects {}",
                      sequence, shown(signature), call, options_.ranks[static_cast<int64_t>(from)], sent[from][to],
                      options_.ranks[static_cast<int64_t>(to)], expected[to][from]));
    }
  }
}

void CallChecker::check(const CallSignature& signature, std::span<const concord_p2p_item> items) {
  const auto next_key = [&](int64_t from, int64_t to) {
    return fmt::format("transfer/{}/{}/{}-{}/{}", options_.name, options_.ranks.first(), from, to,
                       ++transfers_[{from, to}]);
  };
  for (const concord_p2p_item& item : items) {
    if (item.kind == CONCORD_P2P_SEND) store_->set(next_key(options_.index, item.peer), item_text(item));
  }
  for (const concord_p2p_item& item : items) {
    if (item.kind != CONCORD_P2P_RECV) continue;
    const std::string mine = item_text(item);
    const std::string transfer = next_key(item.peer, options_.index);
    std::string theirs;
    try {
      theirs = peers_.await(transfer, options_.ranks[item.peer], options_.timeout);
    } catch (const Error& error) {
      if (error.status() != CONCORD_STATUS_TIMEOUT) throw;
      throw Error(CONCORD_STATUS_TIMEOUT,
                  fmt::format("rank {} sends nothing to rank {} in group {} within {} ms; expected {}",
                              options_.ranks[item.peer], options_.ranks[options_.index], shown(signature),
                              options_.timeout.count(), mine));
    }
    store_->remove(transfer);
    if (theirs == mine) continue;
    throw Error(
        CONCORD_STATUS_INVALID_ARGUMENT,
        fmt::format("a transfer in group {} differs: rank {} sends {}, rank {} expects {}", shown(signature),
                    options_.ranks[item.peer], one_line(theirs, kMaxCall), options_.ranks[options_.index], mine));
  }
}

}  // namespace concord
