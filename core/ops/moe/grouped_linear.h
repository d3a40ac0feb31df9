// concord::grouped_linear: a linear layer with one weight per group of rows: the experts of a mixture-of-experts layer.
// Rows of group e are [ends[e - 1], ends[e]); a group may be empty. As for concord::linear, the derivative has two
// halves, and the weight gradient is added directly to an fp32 buffer and may be deferred.
#pragma once

#include "core/ops/grad_sink.h"

namespace concord {

// |x| [rows, in], |weight| [groups, out, in], of one type and device; |ends| int64 [groups], ascending, the last one
// equal to the number of rows, on the same device. Returns [rows, out]. |sink| as for linear; sink->added is called
// once for all groups. Throws ConfigError, with the sizes, if they do not match. Waits: the reference on a device waits
// for |ends|; kernels of a device neither wait for them nor check them.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends,
                          const GradSink* sink = nullptr);

}  // namespace concord
