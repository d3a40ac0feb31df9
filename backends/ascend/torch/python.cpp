#include "backends/ascend/torch/python.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <vector>

#include "platform/base/python_path.hpp"

namespace concord::ascend::torch_side {
namespace {

namespace fs = std::filesystem;

// torch_npu's lazy initialisation looks up torch_npu.npu._lazy_init, and torch's folder; nothing else is asked for.
constexpr const char* kStubs = R"(
import sys, types
def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made
    return made
npu = module('torch_npu.npu', _lazy_init=lambda: None)
sys.modules['torch.npu'] = npu
module('torch_npu', npu=npu)
module('torch', npu=npu, __file__=TORCH_FILE)
)";

constexpr const char* kImports = R"(
import sys
sys.path.insert(0, PACKAGES)
import torch, torch_npu
)";

// The functions of Python that are used.
struct Python {
  int (*is_initialized)();
  void (*initialize)(int with_signal_handlers);
  int (*run)(const char* text, void* flags);
  void* (*save_thread)();
};

Python functions_of(void* library) {
  const auto find = [&](const char* name) {
    void* const found = dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string("libpython has no ") + name);
    return found;
  };
  return {reinterpret_cast<int (*)()>(find("Py_IsInitialized")),
          reinterpret_cast<void (*)(int)>(find("Py_InitializeEx")),
          reinterpret_cast<int (*)(const char*, void*)>(find("PyRun_SimpleStringFlags")),
          reinterpret_cast<void* (*)()>(find("PyEval_SaveThread"))};
}

// "3.11", from where the wheel is installed.
std::string python_version(const std::string& torch_folder) {
  std::smatch found;
  if (!std::regex_search(torch_folder, found, std::regex("/python(3\\.[0-9]+)/"))) {
    throw std::runtime_error("cannot determine which Python the torch in " + torch_folder +
                             " is for; it must be in .../lib/python3.x/site-packages");
  }
  return found[1];
}

// The folder of the interpreter that a virtual environment was created from: "home = /usr/bin" in its pyvenv.cfg.
fs::path venv_home(const fs::path& packages) {
  std::ifstream file(packages.parent_path().parent_path().parent_path() / "pyvenv.cfg");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("home = ", 0) == 0) return line.substr(7);
  }
  return {};
}

void* load_libpython(const std::string& torch_folder) {
  const std::string version = python_version(torch_folder);
  const std::string name = "libpython" + version + ".so.1.0";
  std::vector<std::string> places = {name};
  const fs::path home = venv_home(fs::path(torch_folder).parent_path().parent_path());
  if (!home.empty()) places.push_back((home.parent_path() / "lib" / name).string());
  std::string tried;
  for (const std::string& place : places) {
    void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) return library;
    tried += "\n  " + place + ": " + dlerror();
  }
  throw std::runtime_error("torch_npu's wheel needs Python's library inside the program; tried:" + tried +
                           "\ninstall it (Debian and Ubuntu: apt-get install libpython" + version +
                           "), or put its folder on LD_LIBRARY_PATH");
}

std::string quoted(const fs::path& path) { return "r'''" + path.string() + "'''"; }

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  return text.replace(text.find(word), word.size(), by);
}

}  // namespace

Packages choose_packages(bool simulator) {
  const char* given = std::getenv("CONCORD_ASCEND_PYTHON");
  const std::string value = given != nullptr ? given : simulator ? "stub" : "import";
  if (value == "import") return Packages::kImport;
  if (value == "stub") return Packages::kStub;
  throw std::runtime_error("CONCORD_ASCEND_PYTHON is '" + value + "'; it must be import or stub");
}

void start_python(const std::string& torch_folder, Packages packages) {
  const auto running = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  if (running != nullptr && running() != 0) return;
  const Python python = functions_of(load_libpython(torch_folder));
  if (const char* const path = std::getenv("PYTHONPATH")) {
    ::setenv("PYTHONPATH", absolute_python_path(path).c_str(), 1);
  }
  python.initialize(0);  // without its signal handlers: the program has its own
  const fs::path torch = fs::path(torch_folder).parent_path();
  const std::string text = packages == Packages::kStub ? replaced(kStubs, "TORCH_FILE", quoted(torch / "__init__.py"))
                                                       : replaced(kImports, "PACKAGES", quoted(torch.parent_path()));
  const int code = python.run(text.c_str(), nullptr);
  python.save_thread();  // libtorch's autograd does not wait on a thread that holds Python's lock
  if (code != 0) throw std::runtime_error("Python could not import torch and torch_npu; its messages are above");
}

}  // namespace concord::ascend::torch_side
