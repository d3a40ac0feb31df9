// The part of the program that needs libtorch: what a rank of `concord train`, `probe` or `generate` runs. It is a
// separate library, libconcordtorch.so, which the program loads when needed (loader.h), because loading libtorch takes
// longer than everything that the other subcommands do.
//
// Program and library are of one build. So C++ types and exceptions cross this boundary: ConfigError and Error are
// caught by the program's main as if they came from its own code (libstdc++ compares types by name, so it does not
// matter that both sides have a copy). |build| is how the program checks: it refuses a library with a different
// build_identity().
//
// Both sides also have a copy of the platform and of its registry. A process uses one of them: the program opens no
// plugin before it calls one of these functions, nor afterwards.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trainer/arguments/arguments.h"
#include "trainer/generation/generate_arguments.h"
#include "trainer/probe_arguments.h"

namespace concord {

// Under a launcher standard output is a pipe: the terminal on which rank 0 draws its progress.
inline constexpr const char* kTerminalVariable = "CONCORD_TERMINAL";

// Threads: the main thread.
struct TorchModule {
  size_t struct_size;
  const char* build;

  // Trains as one rank of the job of the environment, and prints the result. Returns the exit code: 0, or 128 + signal
  // if a signal ended the run after saving. Throws as run_training does (trainer/pretrain.h). Waits: for the other
  // ranks.
  int (*train)(const CommandLine& line);

  // Loads what a rank needs besides this library: the plugin, and the libraries of its device. For a spare process.
  void (*warm_up)();

  // Throws ConfigError for errors in the files and in a job of |world| ranks that can be detected before it starts.
  void (*check_probe)(const ProbeArguments& arguments, int64_t world);
  // Probes as one rank; rank 0 writes the dump and prints. Throws ConfigError and Error. Waits: for the other ranks.
  void (*probe)(const ProbeArguments& arguments);

  // The same for text that a model writes. Rank 0 prints it, on a terminal as it comes.
  void (*check_generate)(const GenerateArguments& arguments, int64_t world);
  void (*generate)(const GenerateArguments& arguments);
};

inline constexpr const char* kTorchModuleFile = "libconcordtorch.so";
// Its one exported function, a TorchModuleOpen. Owns: the library, which is never unloaded.
inline constexpr const char* kTorchModuleEntry = "concord_torch_module_open";
using TorchModuleOpen = const TorchModule* (*)();

}  // namespace concord
