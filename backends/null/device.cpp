#include "device.h"

#include "status.h"

namespace concord::null {

int32_t Devices::count() { return 0; }  // no hardware: never chosen automatically

void Devices::info(int32_t, concord_device_info*) { unimplemented("device.info"); }

void Devices::set_current(int32_t) { unimplemented("device.set_current"); }

int32_t Devices::get_current() { unimplemented("device.get_current"); }

void Devices::synchronize(int32_t) { unimplemented("device.synchronize"); }

}  // namespace concord::null
