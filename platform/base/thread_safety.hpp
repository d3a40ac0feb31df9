// Which mutex protects what, written where the member is declared. These are clang's thread-safety attributes
// (https://clang.llvm.org/docs/ThreadSafetyAnalysis.html); to other compilers they are nothing.
//
// What is checked: toolchains/check_thread_safety.py has clang read the sources that hold a mutex, and fails where a
// guarded member is used without it. Run it after touching a lock; no build does, as it needs libclang (pip install
// libclang) and a minute. The mutexes and locks of libstdc++ have no attributes, so it gives clang a copy of those
// headers that has them; -Wthread-safety in a plain build would complain of every std::mutex that is named here.
//
// What is not checked: members whose guard is said in a comment only, what is reached through a pointer or a reference
// that left the lock, constructors and destructors, and sources whose headers libclang cannot read (it names them).
// TSan looks at what runs (label threads, docs/testing.md).
//
// Example at file scope:
//   #include <mutex>
//   class Counter {
//    public:
//     int next() {
//       const std::lock_guard lock(mutex_);
//       return add(1);
//     }
//    private:
//     int add(int number) CONCORD_REQUIRES(mutex_) { return value_ += number; }
//     std::mutex mutex_;
//     int value_ CONCORD_GUARDED_BY(mutex_) = 0;
//   };
#pragma once

#if defined(__clang__)
#define CONCORD_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define CONCORD_THREAD_ATTRIBUTE(attribute)
#endif

// A member that is read and written only while the mutex is held (shared is enough to read).
#define CONCORD_GUARDED_BY(mutex) CONCORD_THREAD_ATTRIBUTE(guarded_by(mutex))
// A function, or a lambda, that is called with the mutex held, and leaves it so.
#define CONCORD_REQUIRES(...) CONCORD_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define CONCORD_REQUIRES_SHARED(...) CONCORD_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
// A function that the analysis cannot follow; a comment says why it is right.
#define CONCORD_NO_THREAD_SAFETY_ANALYSIS CONCORD_THREAD_ATTRIBUTE(no_thread_safety_analysis)
