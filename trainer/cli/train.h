// `concord train`: trains a model. With --nproc it starts the processes here; under torchrun, srun or mpirun each
// process is a rank. Without any arguments it trains a small model on data that it makes (trainer/first_run.h).
#pragma once

namespace CLI {
class App;
}

namespace concord {

void add_train_command(CLI::App* program, int* exit_code);

}  // namespace concord
