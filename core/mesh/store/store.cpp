#include "core/mesh/store/store.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include "platform/base/thread_safety.hpp"
#include "platform/loader/error.h"

namespace concord {
namespace {

class LocalStore : public Store {
 public:
  void set(const std::string& key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  void wait(std::span<const std::string> keys, Milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    wait_locked(lock, keys, timeout);
  }

  std::vector<std::string> get_all(std::span<const std::string> keys, Milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    wait_locked(lock, keys, timeout);
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(values_.at(key));
    return values;
  }

  int64_t add(const std::string& key, int64_t amount) override {
    const std::lock_guard lock(mutex_);
    std::string& value = values_[key];
    const int64_t sum = (value.empty() ? 0 : std::stoll(value)) + amount;
    value = std::to_string(sum);
    changed_.notify_all();
    return sum;
  }

  bool check(std::span<const std::string> keys) override {
    const std::lock_guard lock(mutex_);
    return has_all(keys);
  }

  bool remove(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return values_.erase(key) != 0;
  }

 private:
  bool has_all(std::span<const std::string> keys) const CONCORD_REQUIRES(mutex_) {
    return std::all_of(keys.begin(), keys.end(),
                       [&](const std::string& key) CONCORD_REQUIRES(mutex_) { return values_.contains(key); });
  }

  void wait_locked(std::unique_lock<std::mutex>& lock, std::span<const std::string> keys, Milliseconds timeout)
      CONCORD_REQUIRES(mutex_) {
    if (changed_.wait_for(lock, timeout, [&]() CONCORD_REQUIRES(mutex_) { return has_all(keys); })) return;
    throw Error(CONCORD_STATUS_TIMEOUT,
                fmt::format("the store has no {} after {} ms", fmt::join(keys, ", "), timeout.count()));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_ CONCORD_GUARDED_BY(mutex_);
};

class PrefixStore : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, std::string_view value) override { store_->set(prefix_ + key, value); }
  void wait(std::span<const std::string> keys, Milliseconds timeout) override { store_->wait(full(keys), timeout); }
  std::vector<std::string> get_all(std::span<const std::string> keys, Milliseconds timeout) override {
    return store_->get_all(full(keys), timeout);
  }
  int64_t add(const std::string& key, int64_t amount) override { return store_->add(prefix_ + key, amount); }
  bool check(std::span<const std::string> keys) override { return store_->check(full(keys)); }
  bool remove(const std::string& key) override { return store_->remove(prefix_ + key); }

 private:
  std::vector<std::string> full(std::span<const std::string> keys) const {
    std::vector<std::string> result;
    result.reserve(keys.size());
    for (const std::string& key : keys) result.push_back(prefix_ + key);
    return result;
  }

  std::shared_ptr<Store> store_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_local_store() { return std::make_shared<LocalStore>(); }

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace concord
