#include "event.h"

#include "status.h"

namespace concord::null {

concord_event Events::create(int32_t, uint32_t) { unimplemented("event.create"); }

void Events::destroy(concord_event) { unimplemented("event.destroy"); }

void Events::record(concord_event, concord_stream) { unimplemented("event.record"); }

int32_t Events::query(concord_event) { unimplemented("event.query"); }

void Events::synchronize(concord_event) { unimplemented("event.synchronize"); }

}  // namespace concord::null
