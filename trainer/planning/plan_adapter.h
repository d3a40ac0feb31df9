// The adapter of a run: a new one from its arguments, or the one to continue. Threads: any.
#pragma once

#include "trainer/plan.h"

namespace concord {

// Sets the adapter, its folder and the adapters to merge. The model's path may be the folder of an adapter: it then
// becomes that of the base model.
void plan_adapter(TrainingPlan* plan);

}  // namespace concord
