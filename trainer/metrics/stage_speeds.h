// Divides the layers among pipeline stages by the measured speeds of their ranks (heterogeneous_split: auto).
//
// Layers are where they are before there is a model, so what is timed are kTimedSteps times kStepSeconds of matrix
// products in the sizes and the type of the model's MLP, on all ranks at the same time. A stage is as slow as the
// slowest of its ranks. The layout becomes that of the run's arguments, which checkpoints contain; a resumed run with
// the same number of stages takes it from there.
#pragma once

#include "core/mesh/parallel_context.h"
#include "trainer/plan.h"

namespace concord {

// Sets the stages of |plan| and its pipeline_model_parallel_layout. Does nothing unless heterogeneous_split is auto,
// and there are several stages, one chunk per rank, and no layout is given. Waits: for all ranks.
void assign_layers_by_speed(TrainingPlan* plan, ParallelContext& job);

}  // namespace concord
