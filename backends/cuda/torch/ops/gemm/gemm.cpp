#include "backends/cuda/torch/ops/gemm/gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/cuda/torch/ops/gemm/gemm_cache.h"

namespace concord::cuda::torch_side {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kSuggestions = 16;

// The functions of the cublasLt that libtorch has loaded.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) suggest = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmulDescCreate) make_desc = nullptr;
  decltype(&cublasLtMatmulDescDestroy) free_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) free_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) free_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;

  bool is_complete = false;
};

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

Library load() {
  Library l;
#ifdef CONCORD_CUBLASLT_STAND_IN  // built without cuBLAS's header: libtorch has its own way to call it
  return l;
#endif
  void* opened = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (opened == nullptr) opened = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  }
  if (opened == nullptr) return l;
  l.is_complete =
      find(opened, "cublasLtCreate", &l.create) && find(opened, "cublasLtGetVersion", &l.version) &&
      find(opened, "cublasLtMatmul", &l.matmul) && find(opened, "cublasLtMatmulAlgoGetHeuristic", &l.suggest) &&
      find(opened, "cublasLtMatmulAlgoCheck", &l.check) && find(opened, "cublasLtMatmulDescCreate", &l.make_desc) &&
      find(opened, "cublasLtMatmulDescDestroy", &l.free_desc) &&
      find(opened, "cublasLtMatmulDescSetAttribute", &l.set_desc) &&
      find(opened, "cublasLtMatrixLayoutCreate", &l.make_layout) &&
      find(opened, "cublasLtMatrixLayoutDestroy", &l.free_layout) &&
      find(opened, "cublasLtMatmulPreferenceCreate", &l.make_preference) &&
      find(opened, "cublasLtMatmulPreferenceDestroy", &l.free_preference) &&
      find(opened, "cublasLtMatmulPreferenceSetAttribute", &l.set_preference);
  return l;
}

bool is_wanted() {
  const char* const said = std::getenv("CONCORD_CUDA_GEMM");
  const std::string how = said == nullptr ? "timed" : said;
  if (how != "timed" && how != "heuristic") {
    throw std::runtime_error("CONCORD_CUDA_GEMM is '" + how + "'; it must be timed (the default) or heuristic");
  }
  return how == "timed";
}

const Library& library() {
  static const Library loaded = is_wanted() ? load() : Library{};
  return loaded;
}

void require(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + " failed with cuBLAS status " + std::to_string(status));
}
void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + " failed: " + cudaGetErrorString(status));
}

cudaDataType_t cuda_type_of(Type type) { return type == Type::bf16 ? CUDA_R_16BF : CUDA_R_16F; }
cudaDataType_t cuda_type_of(Narrow narrow, Type type) {
  switch (narrow) {
    case Narrow::e4m3: return CUDA_R_8F_E4M3;
    case Narrow::e5m2: return CUDA_R_8F_E5M2;
    default: return cuda_type_of(type);
  }
}
bool is_narrow(const Gemm& g) { return g.narrow_a != Narrow::none; }
bool has_blocks(const Gemm& g) { return g.scales_a != Gemm::Scales::matrix || g.scales_b != Gemm::Scales::matrix; }

#if CUBLAS_VERSION >= 120900
constexpr bool kKnowsBlocks = true;
cublasLtMatmulMatrixScale_t mode_of(Gemm::Scales scales) {
  switch (scales) {
    case Gemm::Scales::row_blocks: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Gemm::Scales::squares: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}
#else
constexpr bool kKnowsBlocks = false;
#endif

// A GEMM as cublasLt sees it: by columns, so that c^T = op(b)^T op(a)^T; its first operand is our second. Owns the
// descriptors.
class Described {
 public:
  explicit Described(const Gemm& g) {
    const Library& l = library();
    const cublasOperation_t first = g.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = g.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    require(l.make_desc(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second);
    if (g.has_bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (is_narrow(g)) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(g.fast ? 1 : 0));
#if CUBLAS_VERSION >= 120900
    if (has_blocks(g)) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(g.scales_b));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(g.scales_a));
    }
#endif
    const auto layout = [&](cublasLtMatrixLayout_t* to, cudaDataType_t type, int64_t lines, int64_t length) {
      const auto u = [](int64_t x) { return static_cast<uint64_t>(x); };
      require(l.make_layout(to, type, u(length), u(lines), length), "cublasLtMatrixLayoutCreate");
    };
    layout(&b, cuda_type_of(g.narrow_b, g.type), g.transposed_b ? g.columns : g.depth,
           g.transposed_b ? g.depth : g.columns);
    layout(&a, cuda_type_of(g.narrow_a, g.type), g.transposed_a ? g.depth : g.rows, g.transposed_a ? g.rows : g.depth);
    layout(&c, g.wide ? CUDA_R_32F : cuda_type_of(g.type), g.rows, g.columns);
  }
  ~Described() {
    for (cublasLtMatrixLayout_t each : {a, b, c}) {
      if (each != nullptr) library().free_layout(each);
    }
    if (desc != nullptr) library().free_desc(desc);
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t which, const T& value) {
    require(library().set_desc(desc, which, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
};

// A way to do a GEMM. With memory to work in, most kernels deal out their tiles by a counter there, which takes a
// memset before each call; without it they deal them out evenly. Which is faster depends on the shape.
struct Way {
  cublasLtMatmulAlgo_t algorithm = {};
  size_t memory = kWorkspace;
};

// What is known of a shape. The descriptors' pointers to the bias and to scales change from call to call.
struct Known {
  std::unique_ptr<Described> described;
  Way way = {};
};

std::string text_of(const Way& way) {
  std::string text = std::to_string(way.memory);
  for (const uint64_t word : way.algorithm.data) text += " " + std::to_string(word);
  return text;
}

// The time on a stream from here to stop(). Waits: in milliseconds(), for the stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) {
    require(cudaEventCreate(&begin_), "cudaEventCreate");
    require(cudaEventCreate(&end_), "cudaEventCreate");
    require(cudaEventRecord(begin_, stream), "cudaEventRecord");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void stop(cudaStream_t stream) const { require(cudaEventRecord(end_, stream), "cudaEventRecord"); }
  float milliseconds() const {
    float time = 0;
    require(cudaEventSynchronize(end_), "cudaEventSynchronize");
    require(cudaEventElapsedTime(&time, begin_, end_), "cudaEventElapsedTime");
    return time;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// One of a device: its handle, the algorithms, the file. Threads: one at a time (a lock).
class Device {
 public:
  explicit Device(int index) {
    require(library().create(&handle_), "cublasLtCreate");
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    cache_ = std::make_unique<GemmCache>(std::string(properties.name) + "-cublasLt-" +
                                         std::to_string(library().version()) + "-ways");
  }

  void run(cudaStream_t stream, const Gemm& g, const GemmArrays& arrays, const Workspace& workspace) {
    void* const memory = workspace(kWorkspace);
    const std::lock_guard lock(mutex_);
    auto found = known_.find(g);
    if (found == known_.end()) found = known_.emplace(g, choose(stream, g, arrays, workspace, memory)).first;
    Known& known = found->second;
    point(g, arrays, known.described.get());
    enqueue(stream, g, known, arrays, arrays.c, memory);
  }

 private:
  void enqueue(cudaStream_t stream, const Gemm& g, const Known& known, const GemmArrays& arrays, void* c,
               void* memory) const {
    const float one = 1, beta = g.adds ? 1 : 0;
    const Described& d = *known.described;
    require(library().matmul(handle_, d.desc, &one, arrays.b, d.b, arrays.a, d.a, &beta, c, d.c, c, d.c,
                             &known.way.algorithm, memory, known.way.memory, stream),
            "cublasLtMatmul");
  }

  // What changes from call to call; cublasLt's first operand is our second.
  static void point(const Gemm& g, const GemmArrays& arrays, Described* to) {
    if (g.has_bias) to->set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, arrays.bias);
    if (!is_narrow(g)) return;
    to->set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, arrays.b_scale);
    to->set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, arrays.a_scale);
  }

  Known choose(cudaStream_t stream, const Gemm& g, const GemmArrays& arrays, const Workspace& workspace, void* memory) {
    Known known{std::make_unique<Described>(g)};
    point(g, arrays, known.described.get());
    if (!g.timed) {
      known.way = own_choices(g, *known.described).front();
      return known;
    }
    if (read(key_of(g), &known)) return known;
    // Repeated additions would change c.
    const size_t size = static_cast<size_t>(g.rows * g.columns) * (g.wide ? 4 : 2);
    void* const c = g.adds ? workspace(size) : arrays.c;
    const auto run = [&](const Way& way) {
      known.way = way;
      enqueue(stream, g, known, arrays, c, memory);
    };
    known.way = fastest(stream, candidates(g, arrays, *known.described), run);
    cache_->write(key_of(g), text_of(known.way));
    return known;
  }

  // Returns what cublasLt suggests for the GEMM, its first choice first. Throws std::runtime_error if that is nothing.
  std::vector<Way> own_choices(const Gemm& g, const Described& d) const {
    std::vector<Way> all = suggestions(d, kWorkspace);
    if (!all.empty()) return all;
    throw std::runtime_error("cublasLt has no algorithm for a GEMM (rows, columns, depth and kind: " + key_of(g) +
                             "); CONCORD_CUDA_GEMM=heuristic leaves GEMMs to libtorch");
  }

  // Returns what cublasLt suggests for the GEMM, and for larger and smaller ones if it can do this one so: its own
  // choice is the first.
  std::vector<Way> candidates(const Gemm& g, const GemmArrays& arrays, const Described& d) const {
    std::vector<Way> all = own_choices(g, d);
    if (has_blocks(g)) return all;  // the scales' arrays would not fit
    const auto add = [&](int64_t rows, int64_t columns) {
      Gemm other = g;
      other.rows = rows, other.columns = columns;
      Described described(other);
      point(other, arrays, &described);
      for (const Way& each : suggestions(described, kWorkspace)) {
        const auto same = [&](const Way& x) { return text_of(x) == text_of(each); };
        if (std::none_of(all.begin(), all.end(), same) && can(d, each)) all.push_back(each);
      }
    };
    add(g.rows * 2, g.columns);
    add(g.rows, g.columns * 2);
    add(g.rows / 16 * 8, g.columns);
    add(g.rows, g.columns / 16 * 8);
    for (const Way& each : suggestions(d, 0)) all.push_back(each);
    return all;
  }

  // Each alone first; then those that come near the fastest, with the device under load.
  template <class Run>
  Way fastest(cudaStream_t stream, const std::vector<Way>& all, const Run& run) {
    constexpr float kNear = 1.2F, kClearly = 0.99F;
    constexpr int kMaxUnderLoad = 64;  // shapes of a process: each takes part of a second
    std::vector<float> times = times_alone(stream, all, run);
    const float least = *std::min_element(times.begin(), times.end());
    std::vector<Way> near;
    std::vector<float> near_times;
    for (size_t i = 0; i < all.size(); ++i) {
      if (times[i] > least * kNear) continue;
      near.push_back(all[i]);
      near_times.push_back(times[i]);
    }
    if (near.size() > 1 && shapes_under_load_ < kMaxUnderLoad) {
      ++shapes_under_load_;
      near_times = times_under_load(stream, near, near_times, run);
    }
    // The first is cuBLAS's own choice: another one must be clearly faster, so that noise does not decide.
    size_t best = 0;
    for (size_t i = 1; i < near.size(); ++i) {
      if (near_times[i] < near_times[best] * kClearly) best = i;
    }
    return near[best];
  }

  // Returns no way if cublasLt cannot do it.
  std::vector<Way> suggestions(const Described& d, size_t memory) const {
    const Library& l = library();
    cublasLtMatmulPreference_t preference = nullptr;
    require(l.make_preference(&preference), "cublasLtMatmulPreferenceCreate");
    l.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &memory, sizeof(memory));
    std::array<cublasLtMatmulHeuristicResult_t, kSuggestions> results{};
    int count = 0;
    const cublasStatus_t status =
        l.suggest(handle_, d.desc, d.b, d.a, d.c, d.c, preference, kSuggestions, results.data(), &count);
    l.free_preference(preference);
    std::vector<Way> ways;
    if (status != CUBLAS_STATUS_SUCCESS) return ways;
    for (int i = 0; i < count; ++i) {
      if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
        ways.push_back({results[static_cast<size_t>(i)].algo, memory});
      }
    }
    return ways;
  }

  // Milliseconds, the least of three each.
  template <class Run>
  static std::vector<float> times_alone(cudaStream_t stream, const std::vector<Way>& all, const Run& run) {
    std::vector<float> times;
    for (const Way& each : all) {
      run(each);
      float least = std::numeric_limits<float>::max();
      for (int i = 0; i < 3; ++i) {
        const Stopwatch watch(stream);
        run(each);
        watch.stop(stream);
        least = std::min(least, watch.milliseconds());
      }
      times.push_back(least);
    }
    return times;
  }

  // A device slows down when it reaches its power limit, and what is fastest alone need not be fastest then. All run in
  // turn without a pause, for about 10 ms at a time; the first round only heats.
  template <class Run>
  static std::vector<float> times_under_load(cudaStream_t stream, const std::vector<Way>& all,
                                             const std::vector<float>& alone, const Run& run) {
    constexpr int kRounds = 3;
    constexpr float kTurn = 10;
    std::vector<std::unique_ptr<Stopwatch>> watches;
    const auto repeats = [&](size_t i) { return std::clamp(static_cast<int>(kTurn / alone[i]), 1, 100); };
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < all.size(); ++i) {
        watches.push_back(std::make_unique<Stopwatch>(stream));
        for (int k = 0; k < repeats(i); ++k) run(all[i]);
        watches.back()->stop(stream);
      }
    }
    std::vector<float> times(all.size(), 0);
    for (size_t i = all.size(); i < watches.size(); ++i) {
      const size_t which = i % all.size();
      times[which] += watches[i]->milliseconds() / static_cast<float>(repeats(which) * (kRounds - 1));
    }
    return times;
  }

  // From the file, if it is there and cublasLt takes it.
  bool read(const std::string& key, Known* known) const {
    const std::vector<uint64_t> words = cache_->numbers(key);
    if (words.size() != 1 + std::size(known->way.algorithm.data) || words[0] > kWorkspace) return false;
    known->way.memory = words[0];
    std::copy(words.begin() + 1, words.end(), known->way.algorithm.data);
    return can(*known->described, known->way);
  }

  bool can(const Described& d, const Way& way) const {
    cublasLtMatmulHeuristicResult_t result{};
    return library().check(handle_, d.desc, d.b, d.a, d.c, d.c, &way.algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= way.memory;
  }

  static std::string key_of(const Gemm& g) {
    std::string key;
    for (const int64_t each : {g.rows, g.columns, g.depth}) key += std::to_string(each) + " ";
    for (const bool each : {g.transposed_a, g.transposed_b, g.type == Type::bf16, g.wide, g.adds, g.has_bias}) {
      key += each ? "1" : "0";
    }
    if (is_narrow(g)) {
      for (const Narrow each : {g.narrow_a, g.narrow_b}) key += each == Narrow::e4m3 ? " e4m3" : " e5m2";
      key += g.fast ? " fast" : "";
      for (const Gemm::Scales each : {g.scales_a, g.scales_b}) {
        if (has_blocks(g)) key += each == Gemm::Scales::squares ? " squares" : " blocks";
      }
    }
    return key;
  }

  cublasLtHandle_t handle_ = nullptr;  // for as long as the process lives
  std::unique_ptr<GemmCache> cache_;
  std::mutex mutex_;
  std::map<Gemm, Known> known_;
  int shapes_under_load_ = 0;
};

Device& device_of_thread() {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<Device>> all;
  int index = 0;
  require(cudaGetDevice(&index), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  auto& found = all[index];
  if (!found) found = std::make_unique<Device>(index);
  return *found;
}

}  // namespace

bool has_timed_gemms() { return library().is_complete; }

bool has_block_scaled_gemms() {
  constexpr size_t kFirst = 120900;
  return kKnowsBlocks && library().is_complete && library().version() >= kFirst && is_hopper();
}

// What cublasLt has for blocks of 128.
static bool takes_blocks(const Gemm& g) {
  const bool squares = g.scales_a == Gemm::Scales::squares && g.scales_b == Gemm::Scales::squares;
  const bool mixed = g.scales_a == Gemm::Scales::matrix || g.scales_b == Gemm::Scales::matrix;
  return !squares && !mixed && !g.fast && g.depth % 128 == 0 && has_block_scaled_gemms();
}

bool takes(const Gemm& g) {
  constexpr int64_t kMinSize = 640;  // more than the experts of any model
  const bool is_large = g.rows >= kMinSize && g.columns >= kMinSize && g.depth >= kMinSize;
  const bool is_whole =
      g.rows % 8 == 0 && g.columns % 8 == 0 && g.depth % 8 == 0;  // multiples of 16 bytes, which algorithms need
  const bool is_by_rows = !g.transposed_a && g.transposed_b;
  if (has_blocks(g) && !takes_blocks(g)) return false;
  if (is_narrow(g) && (!is_by_rows || g.rows % 16 != 0 || g.columns % 16 != 0 || g.depth % 16 != 0)) return false;
  return is_large && is_whole && (g.type == Type::bf16 || g.type == Type::f16) && library().is_complete;
}

void gemm(cudaStream_t stream, const Gemm& g, const GemmArrays& arrays, const Workspace& workspace) {
  device_of_thread().run(stream, g, arrays, workspace);
}

}  // namespace concord::cuda::torch_side
