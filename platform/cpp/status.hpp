// Failures: concord::Error, thrown by everything in platform/cpp. status() is one of CONCORD_STATUS_*.
#pragma once

#include "platform/loader/error.h"
