// The key-value store that all processes of a job share: ids of communicators, counters, messages between ranks.
//
// Keys and values are bytes. Errors: TIMEOUT if a key does not appear in time, PEER_LOST if the process that serves
// the store is gone. Threads: any thread; a call that waits for a key delays no other call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

class Store {
 public:
  using Milliseconds = std::chrono::milliseconds;

  virtual ~Store() = default;

  virtual void set(const std::string& key, std::string_view value) = 0;
  // Waits: until all of |keys| exist, at most |timeout|.
  virtual void wait(std::span<const std::string> keys, Milliseconds timeout) = 0;
  // Returns the values of |keys|, in that order. Waits: like wait().
  virtual std::vector<std::string> get_all(std::span<const std::string> keys, Milliseconds timeout) = 0;
  // Adds to the counter at |key| (initially 0) and returns the sum. get reads it as a decimal number.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  // Returns whether all of |keys| exist. Never waits for them.
  virtual bool check(std::span<const std::string> keys) = 0;
  // Returns whether the key existed.
  virtual bool remove(const std::string& key) = 0;

  std::string get(const std::string& key, Milliseconds timeout) { return get_all({&key, 1}, timeout).front(); }
  bool has(const std::string& key) { return check({&key, 1}); }
};

// Returns a store within one process, for jobs of one process and for tests.
std::shared_ptr<Store> make_local_store();

// Returns a view of the keys of |store| that begin with |prefix|, without it.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix);

}  // namespace concord
