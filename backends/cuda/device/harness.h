// The harness of the device test. Each case runs in new processes, so that a case that crashes, hangs or breaks CUDA's
// context does not affect the others. Needs only the plugin's shared library.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "platform/sdk/testing/test_host.hpp"

namespace concord::device {

// The context of a case: the opened plugin and the rank. Pass the status of every call to check().
class Case {
 public:
  Case(const sdk::TestHost& opened, int own_rank, int ranks, std::string files)
      : host(opened), rank(own_rank), world(ranks), files_(std::move(files)) {}

  // Fails the case unless |status| is OK, or |wanted|.
  void check(concord_status status, const char* call, concord_status wanted = CONCORD_STATUS_OK) const;
  void require(bool holds, const std::string& what) const;

  // Creates a communicator of all ranks of the case. |name| must differ between calls.
  concord_comm connect(const std::string& name, int64_t timeout_ms) const;
  // Barrier without the plugin: the other ranks wait until rank 0 calls it.
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

  std::string files_;  // prefix of the names of this case's files
};

struct NamedCase {
  const char* name;  // like the name of a test
  int world;
  std::function<void(Case&)> body;
};

// Runs the cases that the command line selects; returns the exit code.
int run_cases(int argc, char** argv, const std::vector<NamedCase>& cases);

}  // namespace concord::device
