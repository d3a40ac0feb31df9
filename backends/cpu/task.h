// A piece of work for a queue: any callable of no arguments, kept inside the object so that queueing allocates nothing.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace concord::cpu {

// Movable, not copyable. Call it at most once.
class Task {
 public:
  static constexpr size_t kBytes = 112;

  template <class Work>
    requires(!std::is_same_v<std::decay_t<Work>, Task>)
  explicit Task(Work&& work) : actions_(&kActions<std::decay_t<Work>>) {
    using Held = std::decay_t<Work>;
    static_assert(sizeof(Held) <= kBytes, "capture less, or a unique_ptr");
    static_assert(alignof(Held) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<Held>);
    new (storage_) Held(std::forward<Work>(work));
  }
  Task(Task&& other) noexcept : actions_(other.actions_) { actions_->move(storage_, other.storage_); }
  Task& operator=(Task&&) = delete;
  ~Task() { actions_->destroy(storage_); }

  void operator()() { actions_->call(storage_); }

 private:
  struct Actions {
    void (*call)(void* held);
    void (*move)(void* to, void* from) noexcept;  // leaves |from| alive, to be destroyed
    void (*destroy)(void* held) noexcept;
  };

  template <class Held>
  static constexpr Actions kActions = {
      [](void* held) { (*static_cast<Held*>(held))(); },
      [](void* to, void* from) noexcept { new (to) Held(std::move(*static_cast<Held*>(from))); },
      [](void* held) noexcept { static_cast<Held*>(held)->~Held(); },
  };

  const Actions* actions_;
  alignas(std::max_align_t) std::byte storage_[kBytes];
};

}  // namespace concord::cpu
