// The request of a test to the process that has loaded libtorch (preloaded.cpp): one SOCK_SEQPACKET message, with the
// descriptors of standard input, output and error and of the current folder. The reply is the pid, or a negative
// number; a first reply of 0 reports that the server is ready.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace concord::testing_processes {

inline constexpr int kPreloadedDescriptors = 4;
inline constexpr size_t kPreloadedBytes = 128 * 1024;  // maximum size of a message

struct PreloadedStart {
  uint64_t ignored_signals;  // bit n: signal n
  uint64_t argument_count;
  rlimit limits[RLIM_NLIMITS];
};

struct PreloadedRequest {
  PreloadedStart start;
  std::vector<std::string> arguments, environment;
};

inline std::string format_preloaded_request(PreloadedStart start, const std::vector<std::string>& arguments,
                                            const std::vector<std::string>& environment) {
  start.argument_count = arguments.size();
  std::string text(reinterpret_cast<const char*>(&start), sizeof start);
  for (const auto* words : {&arguments, &environment}) {
    for (const std::string& word : *words) text.append(word.c_str(), word.size() + 1);
  }
  return text;
}

inline PreloadedRequest parse_preloaded_request(const std::string& text) {
  PreloadedRequest request{};
  std::memcpy(&request.start, text.data(), sizeof request.start);
  for (size_t at = sizeof request.start; at < text.size();) {
    const std::string word = text.c_str() + at;
    at += word.size() + 1;
    auto& words = request.arguments.size() < request.start.argument_count ? request.arguments : request.environment;
    words.push_back(word);
  }
  return request;
}

// Returns the variables in |environment| that libraries read when they are loaded, in order.
inline std::vector<std::string> load_variables(const std::vector<std::string>& environment) {
  std::vector<std::string> found;
  for (const std::string_view variable : environment) {
    for (const std::string_view prefix : {"LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "OPENBLAS_", "MKL_", "DNNL_",
                                          "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_", "CONCORD_TORCH"}) {
      if (variable.starts_with(prefix)) found.emplace_back(variable);
    }
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace concord::testing_processes
