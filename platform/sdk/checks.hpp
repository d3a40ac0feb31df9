// The argument checks that every backend and the validate layer share. Each throws INVALID_ARGUMENT (check_reduction
// may throw UNIMPLEMENTED) with a message that contains the values. Header-only; no state; any thread.
//
// A backend calls them at the top of its methods; CommTable (communicators.hpp) calls those of collectives. They cannot
// check what only a plugin knows: handles that it never created, and memory that is not its own.
#pragma once

#include "platform/sdk/buffer_checks.hpp"
#include "platform/sdk/comm_checks.hpp"
#include "platform/sdk/rng_checks.hpp"
