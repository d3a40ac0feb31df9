// `concord doctor`: checks this machine and says what to do about each finding.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace concord {

struct Finding {
  enum class Kind { fine, note, problem };
  Kind kind = Kind::fine;
  std::string topic;   // "shared memory"
  std::string found;   // "64 MiB at /dev/shm"
  std::string advice;  // what to do; empty if nothing has to be done
};

// Exit code 1 if there is a problem. |last|, if not empty, is called after all other checks of the machine.
void add_doctor_command(CLI::App* program, int* exit_code, const std::function<Finding()>& last = {});

std::vector<Finding> examine_machine();
// Returns the findings of a platform's own checks of the vendor's software (platform/abi/doctor.h), or a problem if it
// has none.
std::vector<Finding> examine_platform(const std::string& name);

// Pure, for the tests: what is said of numbers that were measured.
Finding judge_shared_memory(int64_t total_bytes, int64_t free_bytes, bool writable);
Finding judge_memory(int64_t total_bytes, int64_t available_bytes);
Finding judge_disk(const std::string& folder, int64_t free_bytes, bool writable);
Finding judge_cores(int allowed, int present);
Finding judge_python(const std::string& python, bool has_tokenizers, bool has_jinja);

}  // namespace concord
