// A library for LD_PRELOAD that makes `concord` a fork server: it loads libtorch once, which takes 0.25 s of a core,
// and every run is a fork of it. For tests that start the program hundreds of times (preloaded_program.h). Each run is
// the real program, starting at main(), with its own process, arguments, environment, folder, limits, streams and
// signals, and a child of the test. The program's own execve of itself, for ranks, works the same way: whatever execve
// would reset (descriptors, handlers, buffered text) is reset here.
//
//   PRELOADED_SOCKET   a descriptor: a SOCK_SEQPACKET socket, see preloaded_request.h
//   PRELOADED_LIBRARY  the library to load: libconcordtorch.so
//   LD_PRELOAD         this library, and after a colon those of the test itself
//
// A process whose environment differs in a variable that libraries read when they are loaded is started by a real
// execve.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio_ext.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/descriptor_message.hpp"
#include "tests/processes/preloaded_request.h"

namespace concord::testing_processes {
namespace {

using Main = int (*)(int, char**, char**);

Main program_main = nullptr;
bool is_serving = false;
std::vector<std::string> loaded_with;  // load_variables of this process
std::terminate_handler terminate_at_start = nullptr;

std::vector<std::string> words_of(char* const* list) {
  std::vector<std::string> words;
  for (; list != nullptr && *list != nullptr; ++list) words.emplace_back(*list);
  return words;
}

// ---------------------------------------------------------------------------------------------- what execve takes away

void close_descriptors() {
  std::vector<int> open;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* item = ::readdir(folder)) open.push_back(std::atoi(item->d_name));
  ::closedir(folder);
  for (const int fd : open) {
    const int flags = fd > 2 ? ::fcntl(fd, F_GETFD) : -1;
    if (flags >= 0 && (flags & FD_CLOEXEC) != 0) ::close(fd);
  }
}

// Uses sigaction: signal would also change the two signals that glibc reserves for threads.
void set_action(int number, sighandler_t handler) {
  struct sigaction action{};
  action.sa_handler = handler;
  ::sigaction(number, &action, nullptr);
}

void reset_handlers() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action{};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    set_action(number, SIG_DFL);
  }
  const stack_t none{nullptr, SS_DISABLE, 0};
  ::sigaltstack(&none, nullptr);
}

// Copies the texts, one after the other, into newly allocated memory.
std::pair<uint64_t, uint64_t> lay_out(const std::vector<std::string>& words, std::vector<char*>* pointers) {
  size_t bytes = 1;
  for (const std::string& word : words) bytes += word.size() + 1;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) ::_exit(126);
  char* at = static_cast<char*>(memory);
  const auto begin = reinterpret_cast<uint64_t>(at);
  for (const std::string& word : words) {
    pointers->push_back(at);
    std::memcpy(at, word.c_str(), word.size() + 1);
    at += word.size() + 1;
  }
  pointers->push_back(nullptr);
  return {begin, reinterpret_cast<uint64_t>(at)};
}

// Sets what /proc/PID/cmdline and environ show. Fields of /proc/PID/stat are numbered as in proc(5).
bool show_arguments(std::pair<uint64_t, uint64_t> arguments, std::pair<uint64_t, uint64_t> environment) {
  std::stringstream file;
  file << std::ifstream("/proc/self/stat").rdbuf();
  const std::string text = file.str();
  std::istringstream rest(text.substr(text.rfind(')') + 1));
  std::vector<std::string> fields = {"", "", ""};  // so that [3] is the state
  for (std::string field; rest >> field;) fields.push_back(field);
  if (fields.size() < 52) return false;
  const auto field = [&](size_t number) { return std::stoull(fields[number]); };
  prctl_mm_map map{};
  map.start_code = field(26), map.end_code = field(27), map.start_stack = field(28);
  map.start_data = field(45), map.end_data = field(46), map.start_brk = field(47);
  map.brk = reinterpret_cast<uint64_t>(::sbrk(0));
  map.arg_start = arguments.first, map.arg_end = arguments.second;
  map.env_start = environment.first, map.env_end = environment.second;
  map.exe_fd = static_cast<uint32_t>(-1);
  return ::prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) == 0;
}

// Exits before libtorch's destructors: the program has not loaded it, or does not run them (torch_module/loader.cpp).
void end_before_destructors() {
  ::on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
}

[[noreturn]] void become_program(const std::vector<std::string>& arguments, const std::vector<std::string>& variables) {
  static std::vector<char*> argv, environment;  // static: main's for the rest of the process
  argv.clear(), environment.clear();
  const auto words = lay_out(arguments, &argv);
  if (!show_arguments(words, lay_out(variables, &environment))) ::_exit(126);
  ::environ = environment.data();
  close_descriptors();
  reset_handlers();
  __fpurge(stdout);
  __fpurge(stderr);
  std::set_terminate(terminate_at_start);
  end_before_destructors();
  // Provided by another preloaded library, if any.
  if (void* const reload = ::dlsym(RTLD_DEFAULT, "reload_variables")) reinterpret_cast<void (*)()>(reload)();
  const std::string_view name = arguments[0];
  ::prctl(PR_SET_NAME, std::string(name.substr(name.rfind('/') + 1)).c_str());
  std::exit(program_main(static_cast<int>(arguments.size()), argv.data(), ::environ));
}

bool is_this_program(const char* path) {
  char own[PATH_MAX] = {}, other[PATH_MAX] = {};
  return ::readlink("/proc/self/exe", own, sizeof own - 1) > 0 && ::realpath(path, other) != nullptr &&
         std::strcmp(own, other) == 0;
}

// --------------------------------------------------------------------------------------------------------- the server

// Like fork, but the new process is a child of this one's parent. Keeps glibc's record of the thread id correct.
pid_t fork_sibling() {
  clone_args arguments{};
  arguments.flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
  arguments.exit_signal = 0;  // CLONE_PARENT: uses that of this process
  int* number = nullptr;
  if (::prctl(PR_GET_TID_ADDRESS, &number, 0, 0, 0) != 0) return -1;
  arguments.child_tid = reinterpret_cast<uint64_t>(number);
  return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
}

struct Order {
  std::string text;
  int descriptors[kPreloadedDescriptors] = {};
};

// Returns nullopt if the test has exited.
std::optional<Order> next_order(int socket) {
  Order order;
  order.text.resize(kPreloadedBytes);
  const size_t length =
      concord::receive_with_descriptors(socket, std::span<char>(order.text), std::span(order.descriptors));
  if (length == 0) return std::nullopt;
  order.text.resize(length);
  return order;
}

[[noreturn]] void run(const Order& order) {
  const PreloadedRequest request = parse_preloaded_request(order.text);
  bool is_ready = ::fchdir(order.descriptors[3]) == 0;
  for (int stream = 0; stream < 3; ++stream) is_ready = is_ready && ::dup2(order.descriptors[stream], stream) == stream;
  for (int kind = 0; kind < RLIM_NLIMITS; ++kind) {
    is_ready = is_ready && ::setrlimit(static_cast<__rlimit_resource>(kind), &request.start.limits[kind]) == 0;
  }
  if (!is_ready) ::_exit(126);
  for (int number = 1; number < NSIG; ++number) {
    set_action(number, (request.start.ignored_signals >> number & 1) != 0 ? SIG_IGN : SIG_DFL);
  }
  become_program(request.arguments, request.environment);
}

bool has_one_thread() {
  std::stringstream status;
  status << std::ifstream("/proc/self/status").rdbuf();
  return status.str().find("\nThreads:\t1\n") != std::string::npos;
}

// Includes descriptors of libraries: the program marks those that libtorch leaves open itself, but does not see them
// here.
void close_on_exec(int socket) {
  for (int fd = 3; fd < 1024; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
}

// Restores LD_PRELOAD as given by the test: removes this library, the first of the list.
void leave_own_library() {
  const std::string all = std::getenv("LD_PRELOAD");
  const size_t end = all.find(':');
  if (end == std::string::npos) {
    ::unsetenv("LD_PRELOAD");
  } else {
    ::setenv("LD_PRELOAD", all.substr(end + 1).c_str(), 1);
  }
}

[[noreturn]] void serve(int socket, const char* library) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const char* name : {"PRELOADED_SOCKET", "PRELOADED_LIBRARY"}) ::unsetenv(name);
  leave_own_library();
  loaded_with = load_variables(words_of(::environ));
  terminate_at_start = std::get_terminate();
  if (::dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "preloaded: %s\n", ::dlerror());
    ::_exit(1);
  }
  close_on_exec(socket);
  std::vector<char*> pointers;
  const auto own = lay_out({"preloaded-server"}, &pointers);  // searches for a test's processes do not find it
  if (!has_one_thread() || !show_arguments(own, {own.second, own.second})) ::_exit(1);
  is_serving = true;
  pid_t answer = 0;  // ready
  while (::send(socket, &answer, sizeof answer, MSG_NOSIGNAL) == sizeof answer) {
    const std::optional<Order> order = next_order(socket);
    if (!order) break;
    answer = fork_sibling();
    if (answer == 0) run(*order);
    for (const int each : order->descriptors) ::close(each);
  }
  ::_exit(0);
}

int served_main(int argc, char** argv, char** environment) {
  const char* const socket = std::getenv("PRELOADED_SOCKET");
  const char* const library = std::getenv("PRELOADED_LIBRARY");
  if (socket != nullptr && library != nullptr) serve(std::atoi(socket), library);
  return program_main(argc, argv, environment);
}

}  // namespace
}  // namespace concord::testing_processes

// ------------------------------------------------------------------------------------------------- in libc's place

using concord::testing_processes::Main;

extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld_fini)(),
                                 void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  concord::testing_processes::program_main = main;
  return reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"))(concord::testing_processes::served_main, argc,
                                                                          argv, init, fini, rtld_fini, stack_end);
}

extern "C" int execve(const char* path, char* const* arguments, char* const* environment) noexcept {
  using namespace concord::testing_processes;
  if (is_serving && is_this_program(path)) {
    const std::vector<std::string> variables = words_of(environment);
    if (load_variables(variables) == loaded_with) become_program(words_of(arguments), variables);
  }
  return static_cast<int>(::syscall(SYS_execve, path, arguments, environment));
}
