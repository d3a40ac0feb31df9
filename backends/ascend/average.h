// The division that turns HCCL's sum into an average, by the operator aclnnInplaceDivs on the same stream; it rounds
// once after the sum. CANN's operator library is large, so it is loaded when the first average is requested.
// Threads: any thread, any time.
#pragma once

#include <functional>
#include <mutex>
#include <optional>

#include "backends/ascend/device.h"

namespace concord::ascend {

class Averages {
 public:
  // Returns memory on the device of |stream| for work that is queued there.
  using Workspace = std::function<void*(int64_t bytes)>;

  explicit Averages(Devices& devices) : devices_(devices) {}

  // Whether averages of |dtype| are supported: f32, f16 and bf16, if CANN's operator library is installed.
  bool supports(concord_dtype dtype) const;
  // Returns why averages are not supported; "" if they are.
  const std::string& reason() const;

  // Queues data[i] /= by for |count| elements. The calling thread's device must be that of the stream.
  void divide(void* data, int64_t count, concord_dtype dtype, int32_t by, concord_stream stream,
              const Workspace& workspace) const;

 private:
  // Returns null if the library is missing.
  const Aclnn* aclnn() const;

  Devices& devices_;
  mutable std::once_flag loaded_;
  mutable std::string reason_;
  mutable std::optional<Aclnn> aclnn_;
};

}  // namespace concord::ascend
