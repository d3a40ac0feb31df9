#include "trainer/torch_module/loader.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "platform/base/sanitizer.hpp"
#include "platform/loader/elf_file.h"
#include "platform/loader/error.h"
#include "platform/loader/search_path.h"
#include "trainer/data/mapped_file.h"
#include "trainer/torch_module/build_identity.h"
#include "trainer/torch_module/library_files.h"
#include "trainer/torch_module/libtorch.h"

namespace concord {
namespace {

struct Place {
  std::string path;
  std::string origin;   // why this path is tried
  std::string problem;  // why it cannot be used; empty if it can
};

// Checks the file: a wrong one must not be loaded, because its libtorch would be loaded with it and stay.
std::string why_not_this_build(const std::string& path) {
  if (MappedFile(path).text().find(build_identity()) != std::string_view::npos) return "";
  return fmt::format("it belongs to a different build of Concord than this program ({})", build_identity());
}

std::vector<Place> find_places() {
  std::vector<Place> places;
  for (const loader::Folder& folder : loader::plugin_folders()) {
    Place& place = places.emplace_back(
        Place{(std::filesystem::path(folder.path) / kTorchModuleFile).string(), folder.origin, folder.problem});
    if (place.problem.empty()) place.problem = loader::why_not_loadable(place.path);
    if (place.problem.empty()) place.problem = why_not_this_build(place.path);
  }
  return places;
}

[[noreturn]] void throw_not_found(const std::vector<Place>& places) {
  std::string text = fmt::format("cannot load {}, the part of concord that needs libtorch; tried:", kTorchModuleFile);
  for (const Place& place : places) text += fmt::format("\n  {} ({}): {}", place.path, place.origin, place.problem);
  throw Error(CONCORD_STATUS_UNAVAILABLE, text +
                                              "\nin a source tree build the target concord, otherwise reinstall "
                                              "Concord; CONCORD_PLUGIN_PATH adds folders to search");
}

// RTLD_GLOBAL: libraries that extend libtorch are loaded later (core/torch/library.h) and find its symbols as in a
// program that links it, whether or not they name it as a dependency. The module itself exports only its entry point.
const TorchModule* open_module(Place* place) {
  void* const library = dlopen(place->path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* const said = dlerror();
    const std::string message = said != nullptr ? said : "no reason given";
    const bool no_libtorch = message.starts_with("libtorch") || message.starts_with("libc10");
    place->problem =
        fmt::format("the dynamic linker rejected it: {}{}", message, no_libtorch ? "; " + libtorch_advice() : "");
    return nullptr;
  }
  const auto open = reinterpret_cast<TorchModuleOpen>(dlsym(library, kTorchModuleEntry));
  const TorchModule* const module = open != nullptr ? open() : nullptr;
  if (module == nullptr || module->struct_size != sizeof *module || std::strcmp(module->build, build_identity()) != 0) {
    place->problem = "it is not the libtorch module of this build";
    return nullptr;
  }
  return module;
}

// libtorch destroys its operator tables when the process exits: a third of a short run's CPU time, for memory that is
// freed with the process anyway. Handlers registered after libtorch was loaded (plugins, traces, the job) still run,
// since they run in reverse order. Not under a sanitizer, which reports at the end.
void skip_destructors_of_libtorch() {
#if !CONCORD_UNDER_ASAN && !CONCORD_UNDER_TSAN
  on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
#endif
}

const TorchModule& load_module() {
  std::vector<Place> places = find_places();
  const LibraryFiles files;
  if (const std::string problem = load_named_libtorch(); !problem.empty()) {
    throw Error(CONCORD_STATUS_UNAVAILABLE, problem + "; " + libtorch_advice());
  }
  for (Place& place : places) {
    if (!place.problem.empty()) continue;
    if (const TorchModule* const module = open_module(&place)) {
      skip_destructors_of_libtorch();
      return *module;
    }
  }
  throw_not_found(places);
}

}  // namespace

const TorchModule& torch_module() {
  static const TorchModule& module = load_module();
  return module;
}

void check_torch_module() {
  const std::vector<Place> places = find_places();
  if (std::ranges::none_of(places, [](const Place& place) { return place.problem.empty(); })) throw_not_found(places);
}

}  // namespace concord
