#include "trainer/cli/program.h"

int main(int argc, char** argv) { return concord::run_program(argc, argv); }
