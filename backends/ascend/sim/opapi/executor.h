// The two phases of an operator. aclnnXGetWorkspaceSize takes the arguments and makes an executor of them; aclnnX puts
// it on a stream, where it runs on the stream's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::sim {

// Result codes of operators, as the vendor numbers them: 16xxxx what the caller gave, 56xxxx the operator itself.
inline constexpr int kAclnnParamNull = 161001;
inline constexpr int kAclnnParamInvalid = 161002;
inline constexpr int kAclnnInner = 561000;
inline constexpr int kAclnnNoKernel = 561112;

// One call of an operator, with everything it needs: its arguments' objects may be destroyed immediately.
struct aclOpExecutor {
  explicit aclOpExecutor(const char* its_name) : name(its_name) {}
  virtual ~aclOpExecutor() = default;
  // On the stream's thread; again where the stream's work was captured and is replayed. Throws.
  virtual void run() const = 0;
  const char* const name;  // "aclnnAdd"
};

// An error of an operator, with the vendor's code.
class OperatorError : public std::runtime_error {
 public:
  OperatorError(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Puts an operator's name on the list that concord_sim_operators hands out. Before main only.
struct Registered {
  explicit Registered(const char* name);
};

// Phase two of every operator. Takes the executor, even if it fails. Errors of the call are returned immediately; those
// of the operator itself from a later synchronisation of the stream, as on hardware.
int launch_executor(const char* name, aclOpExecutor* executor, abi::aclrtStream stream);

// Puts a call on a stream, as launch_executor does.
int queue_call(std::unique_ptr<aclOpExecutor> call, abi::aclrtStream stream);

// The end of phase one: the caller owns the executor until launch. Null pointers are refused.
int hand_out(std::unique_ptr<aclOpExecutor> executor, uint64_t* out_workspace_size, aclOpExecutor** out_executor);

// Writes |text| where aclGetRecentErrMsg finds it, headed by the operator's name, and returns |code|.
int refuse(const char* name, int code, const std::string& text);

}  // namespace concord::ascend::sim
