#include "stream.h"

#include "status.h"

namespace concord::null {

concord_stream Streams::create(int32_t, int32_t) { unimplemented("stream.create"); }

void Streams::destroy(concord_stream) { unimplemented("stream.destroy"); }

void Streams::synchronize(concord_stream) { unimplemented("stream.synchronize"); }

int32_t Streams::query(concord_stream) { unimplemented("stream.query"); }

void Streams::wait_event(concord_stream, concord_event) { unimplemented("stream.wait_event"); }

void Streams::priority_range(int32_t, int32_t*, int32_t*) { unimplemented("stream.priority_range"); }

}  // namespace concord::null
