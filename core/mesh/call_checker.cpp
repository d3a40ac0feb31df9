#include "core/mesh/call_checker.h"

#include "platform/loader/error.h"
#include "platform/loader/text.h"

namespace concord {
namespace {

using loader::cat;

std::string item_text(const concord_p2p_item& item) {
  return cat(to_string(static_cast<DType>(item.dtype)), " x ", item.count);
}

}  // namespace

CallChecker::CallChecker(std::shared_ptr<Store> store, Options options)
    : store_(std::move(store)), options_(std::move(options)) {}

std::string CallChecker::key(int64_t sequence, int64_t index) const {
  return cat("check/", options_.name, "/", options_.ranks.first(), "/", sequence, "/", index);
}

std::vector<std::string> CallChecker::exchange(int64_t sequence, const std::string& mine) {
  store_->set(key(sequence, options_.index), mine);
  std::vector<std::string> all;
  for (int64_t i = 0; i < options_.ranks.size(); ++i) {
    try {
      all.push_back(store_->get(key(sequence, i), options_.timeout));
    } catch (const Error& error) {
      if (error.status() != CONCORD_STATUS_TIMEOUT) throw;
      throw Error(CONCORD_STATUS_TIMEOUT,
                  cat("rank ", options_.ranks[i], " has not made call ", sequence, " of group ", options_.name, " within ",
                      options_.timeout.count(), " ms; rank ", options_.ranks[options_.index], " makes ", mine));
    }
  }
  // Everybody is at |sequence|, so nobody still reads the call before it.
  if (sequence > 1) store_->remove(key(sequence - 1, options_.index));
  return all;
}

void CallChecker::differ(int64_t sequence, int64_t index, const std::string& theirs, const std::string& mine) const {
  throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
              cat("call ", sequence, " of group ", options_.name, " differs: rank ", options_.ranks[options_.index],
                  " makes ", mine, ", rank ", options_.ranks[index], " ", theirs,
                  "; all ranks of a group have to make the same calls in the same order"));
}

void CallChecker::check(int64_t sequence, const CallSignature& signature) {
  const std::string mine = signature.to_string();
  const std::vector<std::string> all = exchange(sequence, mine);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != mine) differ(sequence, static_cast<int64_t>(i), all[i], mine);
  }
}

void CallChecker::check(int64_t sequence, const CallSignature& signature, std::span<const int64_t> send_counts,
                        std::span<const int64_t> recv_counts) {
  const std::string call = cat(to_string(signature.op), " ", to_string(signature.dtype));
  const std::vector<std::string> all = exchange(sequence, cat(call, " sending ", loader::join(send_counts, ",")));
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t split = all[i].find(" sending ");
    if (all[i].substr(0, split) != call) differ(sequence, static_cast<int64_t>(i), all[i], call);
    // Its count for this rank is the entry number index of its list.
    size_t begin = split + 9;
    for (int64_t skip = 0; skip < options_.index; ++skip) begin = all[i].find(',', begin) + 1;
    const int64_t sent = std::stoll(all[i].substr(begin));
    if (sent == recv_counts[i]) continue;
    differ(sequence, static_cast<int64_t>(i), cat(call, " sending ", sent, " to it"),
           cat(call, " expecting ", recv_counts[i], " from there"));
  }
}

void CallChecker::check(std::span<const concord_p2p_item> items) {
  const auto next_key = [&](int64_t from, int64_t to) {
    return cat("transfer/", options_.name, "/", options_.ranks.first(), "/", from, "-", to, "/",
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
      theirs = store_->get(transfer, options_.timeout);
    } catch (const Error& error) {
      if (error.status() != CONCORD_STATUS_TIMEOUT) throw;
      throw Error(CONCORD_STATUS_TIMEOUT,
                  cat("rank ", options_.ranks[item.peer], " sends nothing to rank ", options_.ranks[options_.index],
                      " in group ", options_.name, " within ", options_.timeout.count(), " ms; ", mine, " is expected"));
    }
    store_->remove(transfer);
    if (theirs == mine) continue;
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
                cat("a transfer in group ", options_.name, " differs: rank ", options_.ranks[item.peer], " sends ", theirs,
                    ", rank ", options_.ranks[options_.index], " expects ", mine));
  }
}

}  // namespace concord
