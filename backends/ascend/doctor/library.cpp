// libconcorddoctor_ascend.so: see platform/abi/doctor.h.
#include <exception>

#include "backends/ascend/doctor/installation.h"
#include "platform/abi/doctor.h"

extern "C" __attribute__((visibility("default"))) void concord_doctor_examine(concord_doctor_report report,
                                                                              void* context) {
  try {
    for (const auto& each :
         concord::ascend::judge(concord::ascend::find_installation(concord::ascend::places_of_process()))) {
      report(context, each.kind, each.topic.c_str(), each.found.c_str(), each.advice.c_str());
    }
  } catch (const std::exception& error) {
    report(context, CONCORD_FINDING_PROBLEM, "installation", error.what(),
           "check the permissions of /usr/local/Ascend");
  }
}
