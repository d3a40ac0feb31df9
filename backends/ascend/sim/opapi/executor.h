// The two phases of an operator. aclnnXGetWorkspaceSize creates an executor from the arguments; aclnnX queues it on a
// stream, on whose thread it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::sim {

// Result codes of operators, numbered like the vendor's: 16xxxx for invalid arguments, 56xxxx for errors of operators.
inline constexpr int kAclnnParamNull = 161001;
inline constexpr int kAclnnParamInvalid = 161002;
inline constexpr int kAclnnInner = 561000;
inline constexpr int kAclnnNoKernel = 561112;

// One call of an operator, with everything it needs: its arguments' objects may be destroyed immediately.
struct aclOpExecutor {
  explicit aclOpExecutor(const char* its_name) : name(its_name) {}
  virtual ~aclOpExecutor() = default;
  // Called on the stream's thread, repeatedly if the call was captured and is replayed. Throws.
  virtual void run() const = 0;
  const char* const name;  // "aclnnAdd"
  int64_t bytes_read = 0, bytes_written = 0;
};

// An error of an operator, with the vendor's code.
class OperatorError : public std::runtime_error {
 public:
  OperatorError(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Adds an operator's name to the list of concord_sim_operators. Called before main only.
struct Registered {
  explicit Registered(const char* name);
};

// Phase two of every operator. Consumes the executor, even if it fails. Returns errors of the call; errors of the
// operator are returned by a later synchronisation of the stream, as on hardware.
int launch_executor(const char* name, aclOpExecutor* executor, abi::aclrtStream stream);

// Queues a call on a stream, like launch_executor.
int queue_call(std::unique_ptr<aclOpExecutor> call, abi::aclrtStream stream);

// Ends phase one: the caller owns the executor until launch. Null pointers are an error.
int hand_out(std::unique_ptr<aclOpExecutor> executor, uint64_t* out_workspace_size, aclOpExecutor** out_executor);

// Sets the message of aclGetRecentErrMsg to |text| after the operator's name, and returns |code|.
int refuse(const char* name, int code, const std::string& text);

}  // namespace concord::ascend::sim
