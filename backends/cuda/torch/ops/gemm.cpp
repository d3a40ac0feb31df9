#include "backends/cuda/torch/ops/gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/cuda/torch/ops/gemm_cache.h"

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

// What is known of a shape. The descriptors' pointers to the bias and to scales change from call to call.
struct Known {
  std::unique_ptr<Described> described;
  cublasLtMatmulAlgo_t algorithm = {};
};

std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += (text.empty() ? "" : " ") + std::to_string(word);
  return text;
}

// One of a device: its handle, the algorithms, the file. Threads: one at a time (a lock).
class Device {
 public:
  explicit Device(int index) {
    require(library().create(&handle_), "cublasLtCreate");
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    cache_ =
        std::make_unique<GemmCache>(std::string(properties.name) + "-cublasLt-" + std::to_string(library().version()));
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
                             &known.algorithm, memory, kWorkspace, stream),
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
    if (read(key_of(g), &known)) return known;
    // Repeated additions would change c.
    const size_t size = static_cast<size_t>(g.rows * g.columns) * (g.wide ? 4 : 2);
    void* const c = g.adds ? workspace(size) : arrays.c;
    float best = 0;
    cublasLtMatmulAlgo_t fastest{};
    for (const cublasLtMatmulAlgo_t& each : suggestions(*known.described)) {
      known.algorithm = each;
      const float time = timed(stream, [&] { enqueue(stream, g, known, arrays, c, memory); });
      // The first is cuBLAS's own choice: another one has to be clearly faster, so that noise does not decide.
      constexpr float kClearly = 0.98F;
      if (best == 0 || time < best * kClearly) {
        best = time;
        fastest = each;
      }
    }
    known.algorithm = fastest;
    cache_->write(key_of(g), text_of(fastest));
    return known;
  }

  std::vector<cublasLtMatmulAlgo_t> suggestions(const Described& d) const {
    const Library& l = library();
    cublasLtMatmulPreference_t preference = nullptr;
    require(l.make_preference(&preference), "cublasLtMatmulPreferenceCreate");
    l.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof(kWorkspace));
    std::array<cublasLtMatmulHeuristicResult_t, kSuggestions> results{};
    int count = 0;
    const cublasStatus_t status =
        l.suggest(handle_, d.desc, d.b, d.a, d.c, d.c, preference, kSuggestions, results.data(), &count);
    l.free_preference(preference);
    require(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i) {
      if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
        algorithms.push_back(results[static_cast<size_t>(i)].algo);
      }
    }
    if (algorithms.empty()) throw std::runtime_error("cublasLt has no algorithm for a GEMM");
    return algorithms;
  }

  // Milliseconds, the least of three.
  template <class Run>
  static float timed(cudaStream_t stream, const Run& run) {
    cudaEvent_t begin = nullptr, end = nullptr;
    require(cudaEventCreate(&begin), "cudaEventCreate");
    require(cudaEventCreate(&end), "cudaEventCreate");
    float least = 0;
    run();
    for (int i = 0; i < 3; ++i) {
      float time = 0;
      cudaEventRecord(begin, stream);
      run();
      cudaEventRecord(end, stream);
      require(cudaEventSynchronize(end), "cudaEventSynchronize");
      require(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
      least = i == 0 ? time : std::min(least, time);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return least;
  }

  // From the file, if it is there and cublasLt takes it.
  bool read(const std::string& key, Known* known) const {
    const std::vector<uint64_t> words = cache_->numbers(key);
    if (words.size() != std::size(known->algorithm.data)) return false;
    std::copy(words.begin(), words.end(), known->algorithm.data);
    const Described& d = *known->described;
    cublasLtMatmulHeuristicResult_t result{};
    return library().check(handle_, d.desc, d.b, d.a, d.c, d.c, &known->algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspace;
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
    }
    return key;
  }

  cublasLtHandle_t handle_ = nullptr;  // for as long as the process lives
  std::unique_ptr<GemmCache> cache_;
  std::mutex mutex_;
  std::map<Gemm, Known> known_;
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

bool takes(const Gemm& g) {
  constexpr int64_t kLeast = 640;  // more than the experts of any model
  const bool is_large = g.rows >= kLeast && g.columns >= kLeast && g.depth >= kLeast;
  const bool is_whole =
      g.rows % 8 == 0 && g.columns % 8 == 0 && g.depth % 8 == 0;  // of 16 bytes, which algorithms need
  const bool is_by_rows = !g.transposed_a && g.transposed_b;
  if (is_narrow(g) && (!is_by_rows || g.rows % 16 != 0 || g.columns % 16 != 0 || g.depth % 16 != 0)) return false;
  return is_large && is_whole && (g.type == Type::bf16 || g.type == Type::f16) && library().is_complete;
}

void gemm(cudaStream_t stream, const Gemm& g, const GemmArrays& arrays, const Workspace& workspace) {
  device_of_thread().run(stream, g, arrays, workspace);
}

}  // namespace concord::cuda::torch_side
