// make_sealed_store of store.h. A key is followed by its own keyed hash, a value begins with the hash of key and value:
// SipHash-2-4 (Aumasson and Bernstein, 2012), made for short messages under a secret key of 128 bits.
#include <fmt/core.h>

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

#include "core/mesh/store.h"
#include "platform/loader/error.h"

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

class SealedStore : public Store {
 public:
  SealedStore(std::shared_ptr<Store> store, std::string_view token)
      : store_(std::move(store)), key_{sip_hash({0, 1}, token), sip_hash({2, 3}, token)} {}

  void set(const std::string& key, std::string_view value) override {
    store_->set(full(key), seal(key, value) + std::string(value));
  }
  void wait(std::span<const std::string> keys, Milliseconds timeout) override { store_->wait(full(keys), timeout); }
  std::vector<std::string> get_all(std::span<const std::string> keys, Milliseconds timeout) override {
    std::vector<std::string> values = store_->get_all(full(keys), timeout);
    for (size_t i = 0; i < values.size(); ++i) unseal(keys[i], &values[i]);
    return values;
  }
  int64_t add(const std::string& key, int64_t amount) override { return store_->add(full(key), amount); }
  bool check(std::span<const std::string> keys) override { return store_->check(full(keys)); }
  bool remove(const std::string& key) override { return store_->remove(full(key)); }

 private:
  std::string full(const std::string& key) const {
    char hash[20];
    std::snprintf(hash, sizeof hash, "#%016llx", static_cast<unsigned long long>(sip_hash(key_, "key " + key)));
    return key + hash;
  }
  std::vector<std::string> full(std::span<const std::string> keys) const {
    std::vector<std::string> result;
    for (const std::string& key : keys) result.push_back(full(key));
    return result;
  }

  // The length separates the key from the value.
  std::string seal(const std::string& key, std::string_view value) const {
    const uint64_t hash = sip_hash(key_, fmt::format("value {} {}{}", key.size(), key, value));
    return {reinterpret_cast<const char*>(&hash), sizeof hash};
  }
  void unseal(const std::string& key, std::string* value) const {
    constexpr size_t kSeal = sizeof(uint64_t);
    if (value->size() >= kSeal && value->substr(0, kSeal) == seal(key, std::string_view(*value).substr(kSeal))) {
      value->erase(0, kSeal);
      return;
    }
    throw Error(CONCORD_STATUS_UNAVAILABLE,
                fmt::format("the job's store contains a value for {} that no rank of this job has written; another "
                            "process can reach the store: block MASTER_PORT for processes that are not part of the job",
                            key));
  }

  std::shared_ptr<Store> store_;
  const SipKey key_;
};

}  // namespace

std::shared_ptr<Store> make_sealed_store(std::shared_ptr<Store> store, std::string_view token) {
  return std::make_shared<SealedStore>(std::move(store), token);
}

}  // namespace concord
