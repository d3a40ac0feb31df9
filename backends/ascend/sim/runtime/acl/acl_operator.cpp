// Operators by name (the graph engine's): descriptions of tensors, attributes, and the call. torch_npu takes this way
// for operators that have no aclnn function. Those that libopapi.so has are sent there; the others get an error that
// names them.
#include <dlfcn.h>

#include <map>
#include <string>
#include <vector>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/named_operator.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

struct aclTensorDesc {
  aclDataType type;
  std::vector<int64_t> dims;
  aclFormat format;
  std::string name;
};
struct aclDataBuffer {
  void* data;
  size_t bytes;
};
struct aclopAttr {
  std::map<std::string, std::string> values;
};

namespace {

constexpr aclError kOpNotFound = 100024;

int32_t set_attribute(aclopAttr* attributes, const char* name, std::string value) {
  return guarded("aclopSetAttr", [&] {
    require_not_null(attributes, "attr");
    require_not_null(name, "attrName");
    attributes->values[name] = std::move(value);
  });
}

template <class Value>
std::string list(int count, const Value* values) {
  std::string all = "[";
  for (int i = 0; i < count; ++i) all += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return all + "]";
}

std::string shape_of(const aclTensorDesc* tensor) {
  if (tensor == nullptr) return "none";
  return text("dtype %d ", tensor->type) + list(static_cast<int>(tensor->dims.size()), tensor->dims.data());
}

template <class Tensors>
std::string describe(const char* what, int count, Tensors tensors) {
  std::string all = what;
  for (int i = 0; i < count; ++i) all += (i == 0 ? " " : ", ") + shape_of(tensors[i]);
  return all;
}

template <class Tensors, class Buffers>
std::vector<NamedTensor> named(int count, Tensors tensors, Buffers buffers) {
  std::vector<NamedTensor> all;
  for (int i = 0; i < count; ++i) {
    if (tensors[i] == nullptr || buffers[i] == nullptr) {
      all.push_back({kAclDtUndefined, nullptr, 0, nullptr});
      continue;
    }
    const auto dims = static_cast<int64_t>(tensors[i]->dims.size());
    all.push_back({tensors[i]->type, tensors[i]->dims.data(), dims, buffers[i]->data});
  }
  return all;
}

const char* attribute_of(const NamedCall* call, const char* name) {
  if (call->attributes == nullptr) return nullptr;
  const auto& values = static_cast<const aclopAttr*>(call->attributes)->values;
  const auto found = values.find(name);
  return found != values.end() ? found->second.c_str() : nullptr;
}

// What libopapi.so returns for the call; kNotNamed if the process does not have it.
int32_t ask_operator_library(const NamedCall& call) {
  void* const library = dlopen("libopapi.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return kNotNamed;
  auto* const run = reinterpret_cast<NamedOperator*>(dlsym(library, kNamedOperatorEntry));
  const int32_t code = run != nullptr ? run(&call) : kNotNamed;
  dlclose(library);
  return code;
}

template <class Inputs, class Outputs>
int32_t refuse(const char* type, int inputs, Inputs input, int outputs, Outputs output, const aclopAttr* attributes) {
  return guarded("aclopCompileAndExecute", [&] {
    std::string all = text("the operator '%s' of the graph engine is not simulated;", type == nullptr ? "" : type);
    all += describe(" inputs", inputs, input) + describe("; outputs", outputs, output);
    if (attributes != nullptr) {
      for (const auto& [name, value] : attributes->values) all += "; " + name + " = " + value;
    }
    fail(kOpNotFound, all);
  });
}

}  // namespace

extern "C" {

CONCORD_SIM_EXPORT aclTensorDesc* aclCreateTensorDesc(aclDataType type, int count, const int64_t* dims,
                                                      aclFormat format) {
  if (count < 0 || (count > 0 && dims == nullptr)) return nullptr;
  return new aclTensorDesc{type, std::vector<int64_t>(dims, dims + count), format, {}};
}
CONCORD_SIM_EXPORT void aclDestroyTensorDesc(const aclTensorDesc* tensor) { delete tensor; }
CONCORD_SIM_EXPORT void aclSetTensorDescName(aclTensorDesc* tensor, const char* name) {
  if (tensor != nullptr) tensor->name = name == nullptr ? "" : name;
}
CONCORD_SIM_EXPORT aclFormat aclGetTensorDescFormat(const aclTensorDesc* tensor) {
  return tensor == nullptr ? kAclFormatUndefined : tensor->format;
}
CONCORD_SIM_EXPORT aclDataType aclGetTensorDescType(const aclTensorDesc* tensor) {
  return tensor == nullptr ? kAclDtUndefined : tensor->type;
}
CONCORD_SIM_EXPORT size_t aclGetTensorDescNumDims(const aclTensorDesc* tensor) {
  return tensor == nullptr ? 0 : tensor->dims.size();
}
CONCORD_SIM_EXPORT int32_t aclGetTensorDescDimV2(const aclTensorDesc* tensor, size_t index, int64_t* size) {
  return guarded(__func__, [&] {
    require_not_null(tensor, "desc");
    require_not_null(size, "dimSize");
    if (index >= tensor->dims.size()) invalid(text("dimension %zu of %zu", index, tensor->dims.size()));
    *size = tensor->dims[index];
  });
}
// Storage formats and placement: the simulated operators see plain tensors only.
CONCORD_SIM_EXPORT int32_t aclSetTensorFormat(aclTensorDesc* tensor, aclFormat /*format*/) {
  return guarded(__func__, [&] { require_not_null(tensor, "desc"); });
}
CONCORD_SIM_EXPORT int32_t aclSetTensorShape(aclTensorDesc* tensor, int /*count*/, const int64_t* /*dims*/) {
  return guarded(__func__, [&] { require_not_null(tensor, "desc"); });
}
CONCORD_SIM_EXPORT int32_t aclSetTensorPlaceMent(aclTensorDesc* tensor, int32_t /*kind*/) {
  return guarded(__func__, [&] { require_not_null(tensor, "desc"); });
}

CONCORD_SIM_EXPORT aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) {
  return new aclDataBuffer{data, bytes};
}
CONCORD_SIM_EXPORT int32_t aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete buffer;
  return kAclSuccess;
}

CONCORD_SIM_EXPORT aclopAttr* aclopCreateAttr() { return new aclopAttr; }
CONCORD_SIM_EXPORT void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }
CONCORD_SIM_EXPORT int32_t aclopSetAttrBool(aclopAttr* attributes, const char* name, uint8_t value) {
  return set_attribute(attributes, name, value != 0 ? "true" : "false");
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrDataType(aclopAttr* attributes, const char* name, aclDataType value) {
  return set_attribute(attributes, name, text("dtype %d", value));
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrFloat(aclopAttr* attributes, const char* name, float value) {
  return set_attribute(attributes, name, std::to_string(value));
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrInt(aclopAttr* attributes, const char* name, int64_t value) {
  return set_attribute(attributes, name, std::to_string(value));
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrString(aclopAttr* attributes, const char* name, const char* value) {
  return set_attribute(attributes, name, value == nullptr ? "" : value);
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrListBool(aclopAttr* attributes, const char* name, int count,
                                                const uint8_t* values) {
  return set_attribute(attributes, name, list(count, values));
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrListFloat(aclopAttr* attributes, const char* name, int count,
                                                 const float* values) {
  return set_attribute(attributes, name, list(count, values));
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrListInt(aclopAttr* attributes, const char* name, int count,
                                               const int64_t* values) {
  return set_attribute(attributes, name, list(count, values));
}
CONCORD_SIM_EXPORT int32_t aclopSetAttrListListInt(aclopAttr* attributes, const char* name, int lists,
                                                   const int* counts, const int64_t* const values[]) {
  std::string all;
  for (int i = 0; i < lists; ++i) all += list(counts[i], values[i]);
  return set_attribute(attributes, name, all);
}

CONCORD_SIM_EXPORT int32_t aclopCompileAndExecute(const char* type, int inputs, const aclTensorDesc* const input[],
                                                  const aclDataBuffer* const input_data[], int outputs,
                                                  const aclTensorDesc* const output[],
                                                  aclDataBuffer* const output_data[], const aclopAttr* attributes,
                                                  int32_t, int32_t, const char*, void* stream) {
  if (type == nullptr) return refuse(type, inputs, input, outputs, output, attributes);
  const std::vector<NamedTensor> in = named(inputs, input, input_data);
  const std::vector<NamedTensor> out = named(outputs, output, output_data);
  const int32_t code =
      ask_operator_library({type, in.data(), inputs, out.data(), outputs, &attribute_of, attributes, stream});
  return code != kNotNamed ? code : refuse(type, inputs, input, outputs, output, attributes);
}
CONCORD_SIM_EXPORT int32_t aclopCompileAndExecuteV2(const char* type, int inputs, aclTensorDesc* input[],
                                                    aclDataBuffer* input_data[], int outputs, aclTensorDesc* output[],
                                                    aclDataBuffer* output_data[], aclopAttr* attributes, int32_t engine,
                                                    int32_t compile, const char* path, void* stream) {
  return aclopCompileAndExecute(type, inputs, input, input_data, outputs, output, output_data, attributes, engine,
                                compile, path, stream);
}

// Options of the operators' compiler: there is none, so they are accepted and read back as "disable".
CONCORD_SIM_EXPORT int32_t aclSetCompileopt(int32_t /*option*/, const char* value) {
  return guarded(__func__, [&] { require_not_null(value, "value"); });
}
CONCORD_SIM_EXPORT size_t aclGetCompileoptSize(int32_t /*option*/) { return sizeof "disable"; }
CONCORD_SIM_EXPORT int32_t aclGetCompileopt(int32_t /*option*/, char* value, size_t bytes) {
  return guarded(__func__, [&] {
    require_not_null(value, "value");
    if (bytes < sizeof "disable") invalid("the buffer is too small");
    std::string("disable").copy(value, sizeof "disable");
    value[sizeof "disable" - 1] = '\0';
  });
}
}
