/* The headers as C11 sees them, each alone and with the frozen layout. */
#include "tests/abi/layout_1_0.h"

int concord_layout_holds_in_c(void);
int concord_layout_holds_in_c(void) { return CONCORD_ABI_MAJOR; }
