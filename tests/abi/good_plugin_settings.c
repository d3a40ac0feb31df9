/* CMake gives each sample its name, priority and number of devices. */
#include "tests/abi/good_plugin_settings.h"

const char* const sample_name = SAMPLE_NAME;
const int32_t sample_priority = SAMPLE_PRIORITY;
const int32_t sample_devices = SAMPLE_DEVICES;
