/* Extensions: optional tables, found by name through concord_plugin.find_table as the required ones are. A plugin offers
 * what its hardware has; a host asks for a name and lives with null. Names of this project have no dot; others put their
 * own in front ("acme.power"). Every extension begins with concord_table_header and void* self.
 *
 * None is defined in 1.0.
 */
#ifndef CONCORD_PLATFORM_ABI_EXTENSIONS_H_
#define CONCORD_PLATFORM_ABI_EXTENSIONS_H_

#include "types.h"

#endif /* CONCORD_PLATFORM_ABI_EXTENSIONS_H_ */
