// The part of the program that needs libtorch: the ranks of `concord train`, `probe` and `generate`. It is a separate
// library, libconcordtorch.so, which the program loads on demand (loader.h), because loading libtorch takes longer than
// the other subcommands.
//
// Program and library must be of the same build, so C++ types and exceptions may cross this boundary: the program's
// main catches ConfigError and Error like its own (libstdc++ compares types by name, so both sides may have a copy).
// The program checks |build| and rejects a library with a different build_identity().
//
// Both sides also have a copy of the platform and of its registry. A process uses only one of them: the program opens
// no plugin before it calls one of these functions, nor afterwards.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trainer/arguments/arguments.h"
#include "trainer/generation/generate_arguments.h"
#include "trainer/probe_arguments.h"
#include "trainer/torch_module/operators_arguments.h"

namespace concord {

// The terminal on which rank 0 draws its progress, since standard output is a pipe under a launcher.
inline constexpr const char* kTerminalVariable = "CONCORD_TERMINAL";

// Threads: the main thread.
struct TorchModule {
  size_t struct_size;
  const char* build;

  // Trains as one rank of the job given by the environment, and prints the result. Returns the exit code: 0, or 128 +
  // signal if a signal ended the run after saving. Throws like run_training (trainer/pretrain.h). Waits: for the other
  // ranks.
  int (*train)(const CommandLine& line);

  // Loads what a rank needs in addition to this library: the plugin, and the libraries of its device. For a spare
  // process.
  void (*warm_up)();

  // Throws ConfigError for errors in the files and in a job of |world| ranks that can be detected before it starts.
  void (*check_probe)(const ProbeArguments& arguments, int64_t world);
  // Probes as one rank; rank 0 writes the dump and prints. Throws ConfigError and Error. Waits: for the other ranks.
  void (*probe)(const ProbeArguments& arguments);

  // Like check_probe and probe, for text generation. Rank 0 prints the text, on a terminal as it is generated.
  void (*check_generate)(const GenerateArguments& arguments, int64_t world);
  void (*generate)(const GenerateArguments& arguments);

  // Compares the operators of the platform's device with the references on the host, and prints the comparisons.
  // Returns the exit code: 1 if one is wrong. Throws Error, and std::runtime_error for a file that cannot be written.
  int (*compare_operators)(const OperatorsArguments& arguments);
};

inline constexpr const char* kTorchModuleFile = "libconcordtorch.so";
// The name of the exported function, a TorchModuleOpen. Owns: the library, which is never unloaded.
inline constexpr const char* kTorchModuleEntry = "concord_torch_module_open";
using TorchModuleOpen = const TorchModule* (*)();

}  // namespace concord
