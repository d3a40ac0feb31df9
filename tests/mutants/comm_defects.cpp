// Defects in the values of collectives and transfers.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "tests/mutants/collective.h"

namespace concord::mutants {
namespace {

concord_status plain(ALL_REDUCE_ARGUMENTS) {
  return real().all_reduce(self, comm, send, recv, count, dtype, reduce, stream);
}

template <class Element>
std::vector<Element> as(const Bytes& bytes) {
  std::vector<Element> elements(bytes.size() / sizeof(Element));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(Element));
  return elements;
}

template <class Element>
Bytes bytes_of(const std::vector<Element>& elements) {
  Bytes bytes(elements.size() * sizeof(Element));
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

// Computes what the real plugin would, from the inputs of all ranks, by |combine|(all, count, world, i).
template <class Element, class Combine>
concord_status compute(concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                       concord_stream stream, Combine combine) {
  const auto all = as<Element>(gather(comm, send, count, dtype, stream));
  const auto world = static_cast<size_t>(size_of(comm));
  std::vector<Element> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) {
    std::vector<Element> column;
    for (size_t r = 0; r < world; ++r) column.push_back(all[r * result.size() + i]);
    result[i] = combine(column);
  }
  write_device(recv, bytes_of(result));
  return CONCORD_STATUS_OK;
}

concord_status skip_last(ALL_REDUCE_ARGUMENTS) {
  return plain(self, comm, send, recv, count > 0 ? count - 1 : count, dtype, reduce, stream);
}

concord_status one_too_many(ALL_REDUCE_ARGUMENTS) {
  const concord_status status = plain(self, comm, send, recv, count, dtype, reduce, stream);
  if (status != CONCORD_STATUS_OK || count <= 0) return status;
  wait_for(stream);
  const int64_t size = element_size(dtype);
  write_device(static_cast<char*>(recv) + count * size,
               read_device(static_cast<char*>(recv) + (count - 1) * size, size));
  return status;
}

concord_status lose_element(ALL_REDUCE_ARGUMENTS) {
  constexpr int64_t kLost = 8192;
  const int64_t size = element_size(dtype);
  char* lost = static_cast<char*>(recv) + kLost * size;
  if (count <= kLost) return plain(self, comm, send, recv, count, dtype, reduce, stream);
  wait_for(stream);
  const Bytes before = read_device(lost, size);
  const concord_status status = plain(self, comm, send, recv, count, dtype, reduce, stream);
  wait_for(stream);
  write_device(lost, before);
  return status;
}

concord_status avg_is_sum(ALL_REDUCE_ARGUMENTS) {
  return plain(self, comm, send, recv, count, dtype, reduce == CONCORD_REDUCE_AVG ? CONCORD_REDUCE_SUM : reduce,
               stream);
}

concord_status truncate_bf16(ALL_REDUCE_ARGUMENTS) {
  if (dtype != CONCORD_DTYPE_BF16 || reduce != CONCORD_REDUCE_SUM || !is_good(send, recv, count)) {
    return plain(self, comm, send, recv, count, dtype, reduce, stream);
  }
  return compute<uint16_t>(comm, send, recv, count, dtype, stream, [](const std::vector<uint16_t>& column) {
    float sum = 0;
    for (const uint16_t element : column) {
      const uint32_t bits = static_cast<uint32_t>(element) << 16;
      float value = 0;
      std::memcpy(&value, &bits, 4);
      sum += value;
    }
    uint32_t bits = 0;
    std::memcpy(&bits, &sum, 4);
    return static_cast<uint16_t>(bits >> 16);
  });
}

concord_status f64_in_f32(ALL_REDUCE_ARGUMENTS) {
  if (dtype != CONCORD_DTYPE_F64 || reduce != CONCORD_REDUCE_SUM || !is_good(send, recv, count)) {
    return plain(self, comm, send, recv, count, dtype, reduce, stream);
  }
  return compute<double>(comm, send, recv, count, dtype, stream, [](const std::vector<double>& column) {
    float sum = 0;
    for (const double element : column) sum += static_cast<float>(element);
    return static_cast<double>(sum);
  });
}

concord_status avg_rounds_down(ALL_REDUCE_ARGUMENTS) {
  if (dtype != CONCORD_DTYPE_I32 || reduce != CONCORD_REDUCE_AVG || !is_good(send, recv, count)) {
    return plain(self, comm, send, recv, count, dtype, reduce, stream);
  }
  return compute<int32_t>(comm, send, recv, count, dtype, stream, [](const std::vector<int32_t>& column) {
    double sum = 0;
    for (const int32_t element : column) sum += element;
    return static_cast<int32_t>(std::floor(sum / static_cast<double>(column.size())));
  });
}

concord_status sum_saturates(ALL_REDUCE_ARGUMENTS) {
  if (dtype != CONCORD_DTYPE_I8 || reduce != CONCORD_REDUCE_SUM || !is_good(send, recv, count)) {
    return plain(self, comm, send, recv, count, dtype, reduce, stream);
  }
  return compute<int8_t>(comm, send, recv, count, dtype, stream, [](const std::vector<int8_t>& column) {
    int sum = 0;
    for (const int8_t element : column) sum += element;
    return static_cast<int8_t>(std::clamp(sum, -128, 127));
  });
}

concord_status bool_counts(ALL_REDUCE_ARGUMENTS) {
  const bool changed = dtype == CONCORD_DTYPE_BOOL && reduce == CONCORD_REDUCE_SUM;
  return plain(self, comm, send, recv, count, changed ? CONCORD_DTYPE_U8 : dtype, reduce, stream);
}

concord_status min_ignores_nan(ALL_REDUCE_ARGUMENTS) {
  if (dtype != CONCORD_DTYPE_F32 || reduce != CONCORD_REDUCE_MIN || !is_good(send, recv, count)) {
    return plain(self, comm, send, recv, count, dtype, reduce, stream);
  }
  return compute<float>(comm, send, recv, count, dtype, stream, [](const std::vector<float>& column) {
    float least = column[0];
    for (const float element : column) least = std::fmin(least, element);
    return least;
  });
}

concord_status flush_denormals(ALL_REDUCE_ARGUMENTS) {
  const concord_status status = plain(self, comm, send, recv, count, dtype, reduce, stream);
  if (status != CONCORD_STATUS_OK || dtype != CONCORD_DTYPE_F32 || reduce != CONCORD_REDUCE_SUM || count <= 0)
    return status;
  wait_for(stream);
  auto values = as<float>(read_device(recv, count * 4));
  for (float& value : values) value = std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
  write_device(recv, bytes_of(values));
  return status;
}

concord_status in_place_does_nothing(ALL_REDUCE_ARGUMENTS) {
  return send == recv && count > 0 ? CONCORD_STATUS_OK : plain(self, comm, send, recv, count, dtype, reduce, stream);
}

concord_status scratch_send(ALL_REDUCE_ARGUMENTS) {
  const concord_status status = plain(self, comm, send, recv, count, dtype, reduce, stream);
  if (status != CONCORD_STATUS_OK || dtype != CONCORD_DTYPE_I64 || send == recv || count <= 0) return status;
  wait_for(stream);
  Bytes first = read_device(send, 1);
  first[0] = static_cast<uint8_t>(first[0] ^ 0xff);
  write_device(const_cast<void*>(send), first);
  return status;
}

// Changes the last bit of small sums, whose error bound (by the size of the inputs) is far larger.
concord_status flip_last_bits(ALL_REDUCE_ARGUMENTS) {
  const concord_status status = plain(self, comm, send, recv, count, dtype, reduce, stream);
  if (status != CONCORD_STATUS_OK || dtype != CONCORD_DTYPE_F32 || reduce != CONCORD_REDUCE_SUM || count <= 0)
    return status;
  wait_for(stream);
  auto values = as<float>(read_device(recv, count * 4));
  for (float& value : values) {
    if (std::fabs(value) < 0.125f && value != 0) value = std::nextafter(value, 1.0f);
  }
  write_device(recv, bytes_of(values));
  return status;
}

concord_status differ_on_rank_one(ALL_REDUCE_ARGUMENTS) {
  return (rank_of(comm) == 1 ? flip_last_bits : plain)(self, comm, send, recv, count, dtype, reduce, stream);
}

concord_status differ_between_runs(ALL_REDUCE_ARGUMENTS) {
  static int calls = 0;
  return (++calls % 2 == 0 ? flip_last_bits : plain)(self, comm, send, recv, count, dtype, reduce, stream);
}

concord_status negative_is_none(ALL_REDUCE_ARGUMENTS) {
  return count < 0 ? CONCORD_STATUS_OK : plain(self, comm, send, recv, count, dtype, reduce, stream);
}

concord_status unknown_is_sum(ALL_REDUCE_ARGUMENTS) {
  return plain(self, comm, send, recv, count, dtype, reduce == 99 ? CONCORD_REDUCE_SUM : reduce, stream);
}

concord_status average_bool(ALL_REDUCE_ARGUMENTS) {
  const bool changed = dtype == CONCORD_DTYPE_BOOL && reduce == CONCORD_REDUCE_AVG;
  return plain(self, comm, send, recv, count, dtype, changed ? CONCORD_REDUCE_SUM : reduce, stream);
}

concord_status leak_memory(ALL_REDUCE_ARGUMENTS) {
  lose_memory();
  return plain(self, comm, send, recv, count, dtype, reduce, stream);
}

// ---- the other collectives

concord_status reduce_everywhere(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                                 concord_dtype dtype, concord_reduce_op reduce, int32_t root, concord_stream stream) {
  const concord_status status = real().reduce(self, comm, send, recv, count, dtype, reduce, root, stream);
  if (status != CONCORD_STATUS_OK || rank_of(comm) == root || recv == nullptr || send == recv || count <= 0)
    return status;
  wait_for(stream);
  write_device(recv, Bytes(1, 0x42));
  return status;
}

concord_status wrong_root(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                          concord_dtype dtype, int32_t root, concord_stream stream) {
  const int32_t world = size_of(comm);
  const bool good = root >= 0 && root < world;
  return real().broadcast(self, comm, send, recv, count, dtype, good ? (root + 1) % world : root, stream);
}

concord_status only_numbers(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                            concord_dtype dtype, int32_t root, concord_stream stream) {
  const concord_status status = real().broadcast(self, comm, send, recv, count, dtype, root, stream);
  if (status != CONCORD_STATUS_OK || dtype != CONCORD_DTYPE_F32 || count <= 0) return status;
  wait_for(stream);
  auto values = as<uint32_t>(read_device(recv, count * 4));
  for (uint32_t& bits : values) bits = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : bits;
  write_device(recv, bytes_of(values));
  return status;
}

// Rotates the send buffer by one part, so that every rank gets the part of the next one.
concord_status shifted(void* self, concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                       concord_reduce_op reduce, concord_stream stream) {
  const int64_t part = count * element_size(dtype);
  if (!is_good(send, recv, count) || part == 0)
    return real().reduce_scatter(self, comm, send, recv, count, dtype, reduce, stream);
  wait_for(stream);
  const Bytes before = read_device(send, part * size_of(comm));
  Bytes turned = before;
  std::rotate(turned.begin(), turned.begin() + part, turned.end());
  write_device(const_cast<void*>(send), turned);
  const concord_status status = real().reduce_scatter(self, comm, send, recv, count, dtype, reduce, stream);
  wait_for(stream);
  const Bytes result = read_device(recv, part);
  write_device(const_cast<void*>(send), before);
  write_device(recv, result);  // again, because in place it is a part of the send buffer
  return status;
}

concord_status reversed(void* self, concord_comm comm, const void* send, void* recv, int64_t count, concord_dtype dtype,
                        concord_stream stream) {
  const concord_status status = real().all_gather(self, comm, send, recv, count, dtype, stream);
  if (status != CONCORD_STATUS_OK || count <= 0) return status;
  wait_for(stream);
  const int64_t part = count * element_size(dtype);
  const Bytes all = read_device(recv, part * size_of(comm));
  Bytes turned;
  for (int64_t r = size_of(comm) - 1; r >= 0; --r) {
    turned.insert(turned.end(), all.begin() + r * part, all.begin() + (r + 1) * part);
  }
  write_device(recv, turned);
  return status;
}

concord_status transposed(void* self, concord_comm comm, const void* send, void* recv, int64_t count,
                          concord_dtype dtype, concord_stream stream) {
  if (!is_good(send, recv, count)) return real().all_to_all(self, comm, send, recv, count, dtype, stream);
  wait_for(stream);
  write_device(recv, read_device(send, count * element_size(dtype) * size_of(comm)));
  return CONCORD_STATUS_OK;
}

concord_status packed(void* self, concord_comm comm, const void* send, const int64_t* send_counts,
                      const int64_t* send_offsets, void* recv, const int64_t* recv_counts, const int64_t* recv_offsets,
                      concord_dtype dtype, concord_stream stream) {
  if (recv_counts == nullptr || recv_offsets == nullptr) {
    return real().all_to_all_v(self, comm, send, send_counts, send_offsets, recv, recv_counts, recv_offsets, dtype,
                               stream);
  }
  std::vector<int64_t> offsets(1, 0);
  for (int32_t r = 0; r < size_of(comm); ++r) offsets.push_back(offsets.back() + recv_counts[r]);
  return real().all_to_all_v(self, comm, send, send_counts, send_offsets, recv, recv_counts, offsets.data(), dtype,
                             stream);
}

concord_status swap_messages(void* self, concord_comm comm, const concord_p2p_item* items, int64_t count,
                             concord_stream stream) {
  if (items == nullptr || count < 0) return real().batch_p2p(self, comm, items, count, stream);
  std::vector<concord_p2p_item> changed(items, items + count);
  std::vector<size_t> receives;
  for (size_t i = 0; i < changed.size(); ++i) {
    if (changed[i].kind == CONCORD_P2P_RECV) receives.push_back(i);
  }
  for (size_t i = 0; i < receives.size() / 2; ++i)
    std::swap(changed[receives[i]], changed[receives[receives.size() - 1 - i]]);
  return real().batch_p2p(self, comm, changed.data(), count, stream);
}

concord_status item_by_item(void* self, concord_comm comm, const concord_p2p_item* items, int64_t count,
                            concord_stream stream) {
  if (items == nullptr || count < 0) return real().batch_p2p(self, comm, items, count, stream);
  for (int64_t i = 0; i < count; ++i) {
    const concord_status status = real().batch_p2p(self, comm, items + i, 1, stream);
    if (status != CONCORD_STATUS_OK) return status;
  }
  return CONCORD_STATUS_OK;
}

// ---- support and set-up

concord_status deny_bf16(void* self, concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce,
                         int32_t* out) {
  const concord_status status = real().supports(self, operation, dtype, reduce, out);
  if (status == CONCORD_STATUS_OK && dtype == CONCORD_DTYPE_BF16) *out = 0;
  return status;
}

concord_status deny_product(void* self, concord_comm_op operation, concord_dtype dtype, concord_reduce_op reduce,
                            int32_t* out) {
  const concord_status status = real().supports(self, operation, dtype, reduce, out);
  if (status == CONCORD_STATUS_OK && dtype == CONCORD_DTYPE_F16 && reduce == CONCORD_REDUCE_PROD) *out = 0;
  return status;
}

std::vector<NamedDefect> all_reduce_defects() {
  return {
      {"AllReduceSkipsTheLastElement", replace_all_reduce<skip_last>},
      {"AllReduceWritesOneElementTooMany", replace_all_reduce<one_too_many>},
      {"AllReduceLosesAnElementInMidBuffer", replace_all_reduce<lose_element>},
      {"AvgIsSum", replace_all_reduce<avg_is_sum>},
      {"Bf16IsTruncated", replace_all_reduce<truncate_bf16>},
      {"F64IsSummedInF32", replace_all_reduce<f64_in_f32>},
      {"IntegerAvgRoundsDown", replace_all_reduce<avg_rounds_down>},
      {"IntegerSumSaturates", replace_all_reduce<sum_saturates>},
      {"BoolSumIsNotZeroOrOne", replace_all_reduce<bool_counts>},
      {"MinIgnoresNan", replace_all_reduce<min_ignores_nan>},
      {"DenormalsAreFlushed", replace_all_reduce<flush_denormals>},
      {"InPlaceIsWrong", replace_all_reduce<in_place_does_nothing>},
      {"SendBufferIsUsedAsScratch", replace_all_reduce<scratch_send>},
      {"LastBitDiffersBetweenRanks", replace_all_reduce<differ_on_rank_one>},
      {"LastBitDiffersBetweenRuns", replace_all_reduce<differ_between_runs>},
      {"NegativeCountIsTakenAsNone", replace_all_reduce<negative_is_none>},
      {"UnknownReductionIsSum", replace_all_reduce<unknown_is_sum>},
      {"UnsupportedIsDoneAnyway", replace_all_reduce<average_bool>},
      {"CollectivesLeak", replace_all_reduce<leak_memory>},
  };
}

}  // namespace

std::vector<NamedDefect> comm_defects() {
  std::vector<NamedDefect> list = {
      {"ReduceWritesToEveryRank", [](Tables& tables) { tables.comm.reduce = reduce_everywhere; }},
      {"BroadcastFromTheWrongRoot", [](Tables& tables) { tables.comm.broadcast = wrong_root; }},
      {"BroadcastKeepsOnlyNumbers", [](Tables& tables) { tables.comm.broadcast = only_numbers; }},
      {"ReduceScatterIsShifted", [](Tables& tables) { tables.comm.reduce_scatter = shifted; }},
      {"AllGatherIsReversed", [](Tables& tables) { tables.comm.all_gather = reversed; }},
      {"AllToAllIsTransposed", [](Tables& tables) { tables.comm.all_to_all = transposed; }},
      {"AllToAllVIgnoresOffsets", [](Tables& tables) { tables.comm.all_to_all_v = packed; }},
      {"P2pSwapsMessages", [](Tables& tables) { tables.comm.batch_p2p = swap_messages; }},
      {"P2pRunsItemByItem", [](Tables& tables) { tables.comm.batch_p2p = item_by_item; }},
      {"SupportIsDenied", [](Tables& tables) { tables.comm.supports = deny_bf16; }},
      {"ProductIsDeniedUnseen", [](Tables& tables) { tables.comm.supports = deny_product; }},
  };
  for (const NamedDefect& defect : all_reduce_defects()) list.push_back(defect);
  return list;
}

}  // namespace concord::mutants
