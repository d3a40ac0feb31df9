// Runs a fuzz target without libFuzzer: all of a corpus, then mutations of it, a bounded number and the same ones in
// every run. An input that crashes the process is stored in a file, and its number is printed.
//
//   x_fuzz CORPUS [--iterations N] [--seed S] [--first N] [--keep FOLDER]     exits with 0 if nothing was found
//   x_fuzz FILE...                                                           runs only these inputs
//
// With clang, -fsanitize=fuzzer in place of this file gives the same target to libFuzzer.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace concord::fuzz {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> paths;
  uint64_t iterations = 20'000;
  uint64_t seed = 1;
  uint64_t first = 0;
  std::string keep = ".";
};

// The current input, for the crash handler.
struct Current {
  std::string input;
  char line[256] = {};
  char file[4096] = {};
};
Current current;

// Uses only async-signal-safe calls.
void keep_input() {
  const auto say = [](const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); };
  say("fuzz: ");
  say(current.line);
  const int fd = ::open(current.file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0) {
    (void)!::write(fd, current.input.data(), current.input.size());
    say("; the input is in ");
    say(current.file);
  }
  say("\n");
}

void on_signal(int number) {
  keep_input();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void run_one(std::string input, const std::string& name) {
  current.input = std::move(input);
  std::snprintf(current.line, sizeof current.line, "found something with %s", name.c_str());
  try {
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.input.data()), current.input.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz: it threw: %.500s\n", error.what());
    std::abort();
  }
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Sorted by name, so that the order is the same everywhere.
std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

int run_corpus(const Options& options) {
  std::vector<std::string> corpus;
  for (const fs::path& file : files_in(options.paths.front())) {
    corpus.push_back(read(file));
    run_one(corpus.back(), file.filename().string());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: %s has no file\n", options.paths.front().c_str());
    return 2;
  }
  Mutator mutator(corpus, options.seed);
  for (uint64_t i = options.first; i < options.first + options.iterations; ++i)
    run_one(mutator.input(i),
            "--seed " + std::to_string(options.seed) + " --first " + std::to_string(i) + " --iterations 1");
  std::printf("fuzz: %zu inputs of the corpus and %llu mutations, nothing found\n", corpus.size(),
              static_cast<unsigned long long>(options.iterations));
  return 0;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      options.paths.push_back(word);
      continue;
    }
    if (++i == argc) return false;
    if (word == "--keep") {
      options.keep = argv[i];
      continue;
    }
    uint64_t* target = word == "--iterations" ? &options.iterations
                       : word == "--seed"     ? &options.seed
                       : word == "--first"    ? &options.first
                                              : nullptr;
    if (target == nullptr) return false;
    *target = std::strtoull(argv[i], nullptr, 10);
  }
  return !options.paths.empty();
}

int run(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: %s CORPUS [--iterations N] [--seed S] [--first N] [--keep FOLDER]\n       %s FILE...\n",
                 argv[0], argv[0]);
    return 2;
  }
  std::snprintf(current.file, sizeof current.file, "%s/crash-%s", options.keep.c_str(),
                fs::path(argv[0]).filename().c_str());
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(number, on_signal);
  if (fs::is_directory(options.paths.front())) return run_corpus(options);
  for (const std::string& path : options.paths) run_one(read(path), path);
  return 0;
}

}  // namespace
}  // namespace concord::fuzz

int main(int argc, char** argv) { return concord::fuzz::run(argc, argv); }
