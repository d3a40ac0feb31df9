// The frame of the device test: cases run in fresh processes, so that one that crashes, hangs or breaks CUDA's context
// affects no other. Needs nothing but the plugin's shared library.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "platform/sdk/testing/test_host.hpp"

namespace concord::device {

// The context of a case: the opened plugin and the rank. Calls go through check(), which ends the case.
class Case {
 public:
  Case(const sdk::TestHost& opened, int own_rank, int ranks, std::string files)
      : host(opened), rank(own_rank), world(ranks), files_(std::move(files)) {}

  // Fails the case unless |status| is OK, or |wanted|.
  void check(concord_status status, const char* call, concord_status wanted = CONCORD_STATUS_OK) const;
  void require(bool holds, const std::string& what) const;

  // A communicator of all ranks of the case. |name| has to be another one each time.
  concord_comm connect(const std::string& name, int64_t timeout_ms) const;
  // Rank 0 lets the others go; they wait for it, alive and silent.
  void release_the_others() const;

  concord_stream new_stream() const;
  template <class T>
  T* new_array(const std::vector<T>& values) const {
    return static_cast<T*>(upload(values.data(), static_cast<int64_t>(values.size() * sizeof(T))));
  }
  template <class T>
  std::vector<T> read(const T* device, size_t count) const {
    std::vector<T> values(count);
    download(values.data(), device, static_cast<int64_t>(count * sizeof(T)));
    return values;
  }
  concord_status synchronize(concord_stream stream) const {
    return host.stream().synchronize(host.stream().self, stream);
  }

  const sdk::TestHost& host;
  const int rank;
  const int world;

 private:
  void* upload(const void* data, int64_t bytes) const;
  void download(void* to, const void* from, int64_t bytes) const;

  std::string files_;  // what the names of this case's files begin with
};

struct NamedCase {
  const char* name;  // like the name of a test
  int world;
  std::function<void(Case&)> body;
};

// Runs the cases that the command line asks for; returns the exit code.
int run_cases(int argc, char** argv, const std::vector<NamedCase>& cases);

}  // namespace concord::device
