/* Checks of an installation, for `concord doctor --platform NAME`: an optional library libconcorddoctor_NAME.so next to
 * the plugin. It must load without the vendor's software, and examines which parts of it are installed and whether they
 * fit together. */
#ifndef CONCORD_PLATFORM_ABI_DOCTOR_H_
#define CONCORD_PLATFORM_ABI_DOCTOR_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CONCORD_FINDING_FINE = 0, CONCORD_FINDING_NOTE = 1, CONCORD_FINDING_PROBLEM = 2 };

/* Called once per finding: a topic ("driver"), what was found, and what to do about it ("" if nothing has to be done).
 * The texts are valid during the call. */
typedef void (*concord_doctor_report)(void* context, int32_t kind, const char* topic, const char* found,
                                      const char* advice);

/* The one function of the library: "concord_doctor_examine". Threads: any thread. */
typedef void concord_doctor_examine_function(concord_doctor_report report, void* context);

#ifdef __cplusplus
}
#endif

#endif /* CONCORD_PLATFORM_ABI_DOCTOR_H_ */
