#include "backends/ascend/sim/opapi/objects.h"

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "backends/ascend/sim/opapi/executor.h"
#include "backends/ascend/sim/runtime/sim.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Kind> living CONCORD_GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* const the = new Registry;  // never destroyed: objects are still destroyed at exit
  return *the;
}

template <class Object>
Object* made(std::unique_ptr<Object> object, Kind kind) {
  remember_object(object.get(), kind);
  return object.release();
}

// Destroys |object|; a null one, one that was destroyed before, or one of another kind is an error.
template <class Object>
int destroy(const Object* object, Kind kind) {
  if (!forget_object(object, kind)) {
    concord_sim_set_message(
        (std::string("aclDestroy was given ") + describe_object(object) + ", which is not a live " + name_of(kind))
            .c_str());
    return kAclnnParamInvalid;
  }
  delete object;
  return 0;
}

struct DtypeRow {
  abi::aclDataType dtype;
  const char* name;
  size_t size;
};
constexpr DtypeRow kDtypes[] = {
    {abi::kAclFloat, "float32", 4}, {abi::kAclFloat16, "float16", 2},     {abi::kAclInt8, "int8", 1},
    {abi::kAclInt32, "int32", 4},   {abi::kAclUint8, "uint8", 1},         {abi::kAclInt16, "int16", 2},
    {abi::kAclUint16, "uint16", 2}, {abi::kAclUint32, "uint32", 4},       {abi::kAclInt64, "int64", 8},
    {abi::kAclUint64, "uint64", 8}, {abi::kAclDouble, "float64", 8},      {abi::kAclBool, "bool", 1},
    {abi::kAclBf16, "bfloat16", 2}, {abi::kAclComplex64, "complex64", 8}, {abi::kAclComplex128, "complex128", 16},
};

const DtypeRow* row_of(abi::aclDataType dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

template <class Values>
std::string joined(const Values& values) {
  std::string text;
  for (const auto value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

template <class Value>
std::string as_text(const unsigned char* bytes) {
  Value value;
  std::memcpy(&value, bytes, sizeof value);
  return std::to_string(value);
}

std::string describe(const aclScalar& scalar) {
  const std::string head = "scalar " + dtype_name(scalar.dtype) + " ";
  switch (scalar.dtype) {
    case abi::kAclFloat: return head + as_text<float>(scalar.value);
    case abi::kAclDouble: return head + as_text<double>(scalar.value);
    case abi::kAclInt64: return head + as_text<int64_t>(scalar.value);
    case abi::kAclInt32: return head + as_text<int32_t>(scalar.value);
    case abi::kAclBool: return head + as_text<bool>(scalar.value);
    default: return head + "?";
  }
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"aclTensor",    "aclScalar",     "aclIntArray",   "aclFloatArray",
                                    "aclBoolArray", "aclTensorList", "aclScalarList", "aclOpExecutor"};
  return kNames[static_cast<int>(kind)];
}

bool find_object(const void* object, Kind* out_kind) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.living.find(object);
  if (found == all.living.end()) return false;
  *out_kind = found->second;
  return true;
}

void remember_object(const void* object, Kind kind) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.living[object] = kind;
}

bool forget_object(const void* object, Kind kind) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.living.find(object);
  if (found == all.living.end() || found->second != kind) return false;
  all.living.erase(found);
  return true;
}

std::string describe(const TensorView& view) {
  return "tensor " + dtype_name(view.dtype) + "[" + joined(view.sizes) + "]";
}

std::string describe_object(const void* object) {
  Kind kind;
  if (object == nullptr) return "null";
  if (!find_object(object, &kind)) return std::to_string(reinterpret_cast<uintptr_t>(object));
  switch (kind) {
    case Kind::kTensor: return describe(*static_cast<const aclTensor*>(object)->view);
    case Kind::kScalar: return describe(*static_cast<const aclScalar*>(object));
    case Kind::kIntArray: return "ints{" + joined(static_cast<const aclIntArray*>(object)->values) + "}";
    case Kind::kFloatArray: return "floats{" + joined(static_cast<const aclFloatArray*>(object)->values) + "}";
    case Kind::kBoolArray: return "bools{" + joined(static_cast<const aclBoolArray*>(object)->values) + "}";
    case Kind::kTensorList:
      return std::to_string(static_cast<const aclTensorList*>(object)->elements.size()) + " tensors";
    case Kind::kScalarList:
      return std::to_string(static_cast<const aclScalarList*>(object)->elements.size()) + " scalars";
    case Kind::kExecutor: break;
  }
  return name_of(kind);
}

std::string dtype_name(abi::aclDataType dtype) {
  const DtypeRow* row = row_of(dtype);
  return row != nullptr ? row->name : "type " + std::to_string(static_cast<int>(dtype));
}

size_t dtype_size(abi::aclDataType dtype) {
  const DtypeRow* row = row_of(dtype);
  return row != nullptr ? row->size : 0;
}

// ----------------------------------------------------------------------------------------- what the library exports

extern "C" {

// |data| is the storage's base and |offset| counts elements from it. Without strides the view is dense.
CONCORD_SIM_EXPORT aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t dims, abi::aclDataType dtype,
                                              const int64_t* strides, int64_t offset, int32_t format,
                                              const int64_t* /*storage_sizes*/, uint64_t /*storage_dims*/, void* data) {
  auto view = std::make_shared<TensorView>();
  if (dims != 0) view->sizes.assign(sizes, sizes + dims);
  view->strides.resize(dims);
  int64_t dense = 1;
  for (size_t i = dims; i-- > 0;) {
    view->strides[i] = strides != nullptr ? strides[i] : dense;
    dense *= view->sizes[i];
    if (view->sizes[i] < 0 || offset < 0) {
      concord_sim_set_message(("aclCreateTensor was given a negative size or offset: " + describe(*view)).c_str());
      return nullptr;
    }
  }
  view->offset = offset;
  view->dtype = dtype;
  view->format = format;
  view->storage = data;
  return made(std::make_unique<aclTensor>(aclTensor{std::move(view)}), Kind::kTensor);
}

CONCORD_SIM_EXPORT aclScalar* aclCreateScalar(void* value, abi::aclDataType dtype) {
  const size_t size = dtype_size(dtype);
  if (value == nullptr || size == 0) {
    concord_sim_set_message(
        ("aclCreateScalar was given " + dtype_name(dtype) + " at " + describe_object(value)).c_str());
    return nullptr;
  }
  auto scalar = std::make_unique<aclScalar>(aclScalar{dtype, {}});
  std::memcpy(scalar->value, value, size);
  return made(std::move(scalar), Kind::kScalar);
}

CONCORD_SIM_EXPORT aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  return made(std::make_unique<aclIntArray>(aclIntArray{{values, values + count}}), Kind::kIntArray);
}
CONCORD_SIM_EXPORT aclFloatArray* aclCreateFloatArray(const float* values, uint64_t count) {
  return made(std::make_unique<aclFloatArray>(aclFloatArray{{values, values + count}}), Kind::kFloatArray);
}
CONCORD_SIM_EXPORT aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t count) {
  return made(std::make_unique<aclBoolArray>(aclBoolArray{std::vector<bool>(values, values + count)}),
              Kind::kBoolArray);
}
CONCORD_SIM_EXPORT aclTensorList* aclCreateTensorList(const aclTensor* const* elements, uint64_t count) {
  return made(std::make_unique<aclTensorList>(aclTensorList{{elements, elements + count}}), Kind::kTensorList);
}
CONCORD_SIM_EXPORT aclScalarList* aclCreateScalarList(const aclScalar* const* elements, uint64_t count) {
  return made(std::make_unique<aclScalarList>(aclScalarList{{elements, elements + count}}), Kind::kScalarList);
}

CONCORD_SIM_EXPORT int aclDestroyTensor(const aclTensor* object) { return destroy(object, Kind::kTensor); }
CONCORD_SIM_EXPORT int aclDestroyScalar(const aclScalar* object) { return destroy(object, Kind::kScalar); }
CONCORD_SIM_EXPORT int aclDestroyIntArray(const aclIntArray* object) { return destroy(object, Kind::kIntArray); }
CONCORD_SIM_EXPORT int aclDestroyFloatArray(const aclFloatArray* object) { return destroy(object, Kind::kFloatArray); }
CONCORD_SIM_EXPORT int aclDestroyBoolArray(const aclBoolArray* object) { return destroy(object, Kind::kBoolArray); }

CONCORD_SIM_EXPORT int aclDestroyTensorList(const aclTensorList* object) {
  Kind kind;
  if (find_object(object, &kind) && kind == Kind::kTensorList) {
    for (const aclTensor* element : object->elements) destroy(element, Kind::kTensor);
  }
  return destroy(object, Kind::kTensorList);
}

CONCORD_SIM_EXPORT int aclDestroyScalarList(const aclScalarList* object) {
  Kind kind;
  if (find_object(object, &kind) && kind == Kind::kScalarList) {
    for (const aclScalar* element : object->elements) destroy(element, Kind::kScalar);
  }
  return destroy(object, Kind::kScalarList);
}

// The caller owns |*out_sizes| (delete[]). After an operator whose output size depends on values this is that size; the
// stream must be synchronised first.
CONCORD_SIM_EXPORT int aclGetViewShape(const aclTensor* tensor, int64_t** out_sizes, uint64_t* out_dims) {
  Kind kind;
  if (!find_object(tensor, &kind) || kind != Kind::kTensor || out_sizes == nullptr || out_dims == nullptr) {
    concord_sim_set_message(("aclGetViewShape was given " + describe_object(tensor)).c_str());
    return kAclnnParamInvalid;
  }
  const std::vector<int64_t>& sizes = tensor->view->sizes;
  *out_dims = sizes.size();
  *out_sizes = new int64_t[sizes.size()];
  std::copy(sizes.begin(), sizes.end(), *out_sizes);
  return 0;
}

}  // extern "C"

}  // namespace concord::ascend::sim
