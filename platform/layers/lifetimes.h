// Which handles are live and which were destroyed, and when: the records of the validate layer for one kind of handle.
// Not thread-safe; the layer has a lock.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "platform/loader/text.h"
#include "platform/sdk/plugin.hpp"

namespace concord::layers {

// When something ended and who ended it.
struct Ending {
  std::chrono::steady_clock::time_point when = std::chrono::steady_clock::now();
  long thread = syscall(SYS_gettid);
};

// "0.25 s ago by thread 4711"
inline std::string describe(const Ending& ending) {
  const std::chrono::duration<double> ago = std::chrono::steady_clock::now() - ending.when;
  return loader::cat(ago.count(), " s ago by thread ", ending.thread);
}

template <class Info>
class Lifetimes {
 public:
  // |what| is the word for messages: "stream".
  explicit Lifetimes(const char* what) : what_(what) {}

  void begin(const void* handle, Info info) {
    ended_.erase(handle);  // the vendor may reuse an address
    live_.insert_or_assign(handle, std::move(info));
  }

  Info* find(const void* handle) {
    const auto found = live_.find(handle);
    return found != live_.end() ? &found->second : nullptr;
  }

  // The live |handle|; INVALID_ARGUMENT if it is not live.
  Info& need(const void* handle) {
    if (Info* found = find(handle)) return *found;
    if (handle == nullptr) sdk::invalid(loader::cat("the ", what_, " is null"));
    if (const auto ended = ended_.find(handle); ended != ended_.end()) {
      sdk::invalid(loader::cat(name(handle), " was destroyed ", describe(ended->second)));
    }
    sdk::invalid(loader::cat(name(handle), " was not created by this platform"));
  }

  // Removes the live |handle| before it is destroyed; |begin| restores it if that fails.
  Info end(const void* handle) {
    Info info = std::move(need(handle));
    live_.erase(handle);
    ended_[handle] = Ending{};
    order_.push_back(handle);
    if (order_.size() > kRemembered) {
      ended_.erase(order_.front());
      order_.pop_front();
    }
    return info;
  }

  size_t live() const { return live_.size(); }
  const char* what() const { return what_; }

 private:
  static constexpr size_t kRemembered = 4096;

  std::string name(const void* handle) const {
    std::string text = loader::cat("the ", what_, " ");
    loader::append_pointer(text, handle);
    return text;
  }

  const char* what_;
  std::unordered_map<const void*, Info> live_;
  std::unordered_map<const void*, Ending> ended_;
  std::deque<const void*> order_;
};

}  // namespace concord::layers
