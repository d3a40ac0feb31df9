// make_sealed_store of store.h. A key is followed by its own keyed hash, a value begins with the hash of key and value.
#include <fmt/core.h>

#include <cstdio>

#include "core/mesh/keyed_hash.h"
#include "core/mesh/store.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

class SealedStore : public Store {
 public:
  SealedStore(std::shared_ptr<Store> store, std::string_view token) : store_(std::move(store)), hash_(token) {}

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
    std::snprintf(hash, sizeof hash, "#%016llx", static_cast<unsigned long long>(hash_("key " + key)));
    return key + hash;
  }
  std::vector<std::string> full(std::span<const std::string> keys) const {
    std::vector<std::string> result;
    for (const std::string& key : keys) result.push_back(full(key));
    return result;
  }

  // The length separates the key from the value.
  std::string seal(const std::string& key, std::string_view value) const {
    const uint64_t hash = hash_(fmt::format("value {} {}{}", key.size(), key, value));
    return {reinterpret_cast<const char*>(&hash), sizeof hash};
  }
  void unseal(const std::string& key, std::string* value) const {
    constexpr size_t kSeal = sizeof(uint64_t);
    if (value->size() >= kSeal &&
        is_same_text(value->substr(0, kSeal), seal(key, std::string_view(*value).substr(kSeal)))) {
      value->erase(0, kSeal);
      return;
    }
    throw Error(CONCORD_STATUS_UNAVAILABLE,
                fmt::format("the job's store contains a value for {} that no rank of this job has written; another "
                            "process can reach the store: block MASTER_PORT for processes that are not part of the job",
                            key));
  }

  std::shared_ptr<Store> store_;
  const KeyedHash hash_;
};

}  // namespace

std::shared_ptr<Store> make_sealed_store(std::shared_ptr<Store> store, std::string_view token) {
  return std::make_shared<SealedStore>(std::move(store), token);
}

}  // namespace concord
