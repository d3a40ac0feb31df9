#include "platform/conformance/refusals.h"

#include "platform/conformance/resources.h"

namespace concord::conformance {
namespace {

constexpr int64_t kRefusedBytes = 64;

// Device memory that lives as long as the list that uses it.
std::shared_ptr<DeviceMemory> scratch(Context& t) { return std::make_shared<DeviceMemory>(t, 4096); }

concord_rng_request rng_request(concord_rng_kind kind, concord_dtype dtype, void* destination, int64_t count) {
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = kind;
  request.dtype = dtype;
  request.destination = destination;
  request.count = count;
  request.high = 1;
  request.integer_high = 10;
  return request;
}

}  // namespace

void require_refused(Context& t, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    t.step(refusal.what.c_str());
    t.require_status(refusal.call(), CONCORD_STATUS_INVALID_ARGUMENT, refusal.what.c_str());
    take_detail();
  }
}

std::vector<Refusal> device_refusals(Context& t) {
  const concord_device_table& d = t.device_table();
  const int32_t beyond = t.device_count();
  auto info = std::make_shared<concord_device_info>();
  info->struct_size = sizeof(concord_device_info);
  return {
      {"device.count into null", [&] { return d.count(d.self, nullptr); }},
      {"device.info of device -1", [&d, info] { return d.info(d.self, -1, info.get()); }},
      {"device.info of a device that does not exist",
       [&d, info, beyond] { return d.info(d.self, beyond, info.get()); }},
      {"device.info into null", [&] { return d.info(d.self, 0, nullptr); }},
      {"device.set_current to -1", [&] { return d.set_current(d.self, -1); }},
      {"device.set_current to a device that does not exist", [&d, beyond] { return d.set_current(d.self, beyond); }},
      {"device.get_current into null", [&] { return d.get_current(d.self, nullptr); }},
      {"device.synchronize of a device that does not exist", [&d, beyond] { return d.synchronize(d.self, beyond); }},
  };
}

std::vector<Refusal> memory_refusals(Context& t) {
  const concord_memory_table& m = t.memory();
  auto device = scratch(t);
  auto host = std::make_shared<Bytes>(kRefusedBytes);
  const int32_t here = t.device();
  const int32_t beyond = t.device_count();
  const concord_stream stream = t.stream();
  const auto copy = [&m, host, device](bool null_target, bool null_source, int64_t bytes, int32_t kind) {
    return [&m, host, device, null_target, null_source, bytes, kind] {
      return m.copy(m.self, null_target ? nullptr : device->get(), null_source ? nullptr : host->data(), bytes, kind);
    };
  };
  const auto copy_on_stream = [&m, host, device, stream](bool null_target, int64_t bytes, int32_t kind) {
    return [&m, host, device, stream, null_target, bytes, kind] {
      return m.copy_on_stream(m.self, null_target ? nullptr : device->get(), host->data(), bytes, kind, stream);
    };
  };
  const auto allocate = [&m](int32_t on, int64_t bytes) {
    return [&m, on, bytes] {
      void* pointer = nullptr;
      return m.allocate(m.self, on, bytes, &pointer);
    };
  };
  return {
      {"memory.allocate of -1 bytes", allocate(here, -1)},
      {"memory.allocate on device -1", allocate(-1, kRefusedBytes)},
      {"memory.allocate on a device that does not exist", allocate(beyond, kRefusedBytes)},
      {"memory.allocate into null", [&m, here] { return m.allocate(m.self, here, kRefusedBytes, nullptr); }},
      {"memory.allocate_host of -1 bytes",
       [&m] {
         void* pointer = nullptr;
         return m.allocate_host(m.self, -1, &pointer);
       }},
      {"memory.allocate_host into null", [&m] { return m.allocate_host(m.self, kRefusedBytes, nullptr); }},
      {"memory.copy to null", copy(true, false, kRefusedBytes, CONCORD_COPY_HOST_TO_DEVICE)},
      {"memory.copy from null", copy(false, true, kRefusedBytes, CONCORD_COPY_HOST_TO_DEVICE)},
      {"memory.copy of -1 bytes", copy(false, false, -1, CONCORD_COPY_HOST_TO_DEVICE)},
      {"memory.copy of kind 0", copy(false, false, kRefusedBytes, 0)},
      {"memory.copy of kind 99", copy(false, false, kRefusedBytes, 99)},
      {"memory.copy_on_stream to null", copy_on_stream(true, kRefusedBytes, CONCORD_COPY_HOST_TO_DEVICE)},
      {"memory.copy_on_stream of -1 bytes", copy_on_stream(false, -1, CONCORD_COPY_HOST_TO_DEVICE)},
      {"memory.copy_on_stream of kind 99", copy_on_stream(false, kRefusedBytes, 99)},
      {"memory.fill_on_stream of null",
       [&m, stream] { return m.fill_on_stream(m.self, nullptr, 0, kRefusedBytes, stream); }},
      {"memory.fill_on_stream of -1 bytes",
       [&m, device, stream] { return m.fill_on_stream(m.self, device->get(), 0, -1, stream); }},
      {"memory.info of a device that does not exist",
       [&m, beyond] {
         int64_t free = 0;
         int64_t total = 0;
         return m.info(m.self, beyond, &free, &total);
       }},
      {"memory.info into null", [&m, here] { return m.info(m.self, here, nullptr, nullptr); }},
      {"memory.describe_pointer into null",
       [&m, device] { return m.describe_pointer(m.self, device->get(), nullptr); }},
  };
}

std::vector<Refusal> stream_refusals(Context& t) {
  const concord_stream_table& s = t.streams();
  const int32_t here = t.device();
  const int32_t beyond = t.device_count();
  const concord_stream stream = t.stream();
  std::vector<Refusal> list = {
      {"stream.create on device -1",
       [&s] {
         concord_stream made = nullptr;
         return s.create(s.self, -1, 0, &made);
       }},
      {"stream.create on a device that does not exist",
       [&s, beyond] {
         concord_stream made = nullptr;
         return s.create(s.self, beyond, 0, &made);
       }},
      {"stream.create into null", [&s, here] { return s.create(s.self, here, 0, nullptr); }},
      {"stream.query into null", [&s, stream] { return s.query(s.self, stream, nullptr); }},
      {"stream.wait_event on null", [&s, stream] { return s.wait_event(s.self, stream, nullptr); }},
      {"stream.priority_range of a device that does not exist",
       [&s, beyond] {
         int32_t least = 0;
         int32_t greatest = 0;
         return s.priority_range(s.self, beyond, &least, &greatest);
       }},
      {"stream.priority_range into null", [&s, here] { return s.priority_range(s.self, here, nullptr, nullptr); }},
  };
  if (t.capability(CONCORD_CAP_STREAM_HOST_FUNCTIONS) != 0) {
    list.push_back(
        {"stream.launch_host of null", [&s, stream] { return s.launch_host(s.self, stream, nullptr, nullptr); }});
  }
  return list;
}

std::vector<Refusal> event_refusals(Context& t) {
  const concord_event_table& e = t.events();
  const int32_t here = t.device();
  const int32_t beyond = t.device_count();
  const concord_stream stream = t.stream();
  auto event = std::make_shared<Event>(t);
  const auto with_flags = [&e, here](uint32_t flags) {
    return [&e, here, flags] {
      concord_event made = nullptr;
      return e.create(e.self, here, flags, &made);
    };
  };
  return {
      {"event.create with the unknown flag 0x2", with_flags(0x2)},
      {"event.create with the unknown flag 0x80000000", with_flags(0x80000000u)},
      {"event.create with CONCORD_EVENT_TIMING and an unknown flag", with_flags(CONCORD_EVENT_TIMING | 0x4)},
      {"event.create on a device that does not exist",
       [&e, beyond] {
         concord_event made = nullptr;
         return e.create(e.self, beyond, 0, &made);
       }},
      {"event.create into null", [&e, here] { return e.create(e.self, here, 0, nullptr); }},
      {"event.record of null", [&e, stream] { return e.record(e.self, nullptr, stream); }},
      {"event.query of null",
       [&e] {
         int32_t done = 0;
         return e.query(e.self, nullptr, &done);
       }},
      {"event.query into null", [&e, event] { return e.query(e.self, event->get(), nullptr); }},
      {"event.synchronize of null", [&e] { return e.synchronize(e.self, nullptr); }},
  };
}

std::vector<Refusal> rng_refusals(Context& t) {
  const concord_rng_table& r = t.rng();
  auto memory = scratch(t);
  const concord_stream stream = t.stream();
  const auto with = [&r, memory, stream](concord_rng_kind kind, concord_dtype dtype, int64_t count = 4) {
    return [&r, memory, stream, kind, dtype, count] {
      const concord_rng_request request = rng_request(kind, dtype, memory->get(), count);
      return r.fill(r.self, &request, stream);
    };
  };
  return {
      {"rng.fill of null", [&r, stream] { return r.fill(r.self, nullptr, stream); }},
      {"rng.fill of kind 0", with(0, CONCORD_DTYPE_F32)},
      {"rng.fill of kind 99", with(99, CONCORD_DTYPE_F32)},
      {"rng.fill of uniform dtype 0", with(CONCORD_RNG_UNIFORM, 0)},
      {"rng.fill of bits as f32", with(CONCORD_RNG_BITS, CONCORD_DTYPE_F32)},
      {"rng.fill of uniform as i32", with(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_I32)},
      {"rng.fill of normal as i64", with(CONCORD_RNG_NORMAL, CONCORD_DTYPE_I64)},
      {"rng.fill of integers as f32", with(CONCORD_RNG_INTEGER, CONCORD_DTYPE_F32)},
      {"rng.fill of -1 elements", with(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32, -1)},
      {"rng.fill into null",
       [&r, stream] {
         const concord_rng_request request = rng_request(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32, nullptr, 4);
         return r.fill(r.self, &request, stream);
       }},
      {"rng.fill of integers from an empty range",
       [&r, memory, stream] {
         concord_rng_request request = rng_request(CONCORD_RNG_INTEGER, CONCORD_DTYPE_I32, memory->get(), 4);
         request.integer_low = request.integer_high;
         return r.fill(r.self, &request, stream);
       }},
      {"rng.fill with a reserved field that is not 0",
       [&r, memory, stream] {
         concord_rng_request request = rng_request(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32, memory->get(), 4);
         request.reserved = 1;
         return r.fill(r.self, &request, stream);
       }},
  };
}

std::vector<Refusal> comm_setup_refusals(Context& t) {
  const concord_comm_table& c = t.comms();
  int64_t bytes = 0;
  CHECK_OK(c.unique_id_size(c.self, &bytes));
  auto id = std::make_shared<Bytes>(static_cast<size_t>(bytes) + 1);
  CHECK_OK(c.unique_id_create(c.self, id->data(), bytes));
  const int32_t here = t.device();
  const int32_t beyond = t.device_count();
  const auto init = [&c, id, bytes](int32_t device, int32_t world, int32_t rank, int64_t more = 0, bool null = false) {
    return [&c, id, bytes, device, world, rank, more, null] {
      const concord_comm_config config = comm_config("refused", 2000);
      concord_comm comm = nullptr;
      return c.init(c.self, device, world, rank, null ? nullptr : id->data(), bytes + more, &config, &comm);
    };
  };
  return {
      {"comm.unique_id_size into null", [&c] { return c.unique_id_size(c.self, nullptr); }},
      {"comm.unique_id_create into null", [&c, bytes] { return c.unique_id_create(c.self, nullptr, bytes); }},
      {"comm.unique_id_create of a byte too few",
       [&c, id, bytes] { return c.unique_id_create(c.self, id->data(), bytes - 1); }},
      {"comm.init with world 0", init(here, 0, 0)},
      {"comm.init with rank -1", init(here, 2, -1)},
      {"comm.init with rank 2 of 2", init(here, 2, 2)},
      {"comm.init on a device that does not exist", init(beyond, 1, 0)},
      {"comm.init with an id of a byte too few", init(here, 1, 0, -1)},
      {"comm.init with a null id", init(here, 1, 0, 0, true)},
      {"comm.init with a reserved field that is not 0",
       [&c, id, bytes, here] {
         concord_comm_config config = comm_config("refused", 2000);
         config.reserved = 1;
         concord_comm comm = nullptr;
         return c.init(c.self, here, 1, 0, id->data(), bytes, &config, &comm);
       }},
      {"comm.init into null",
       [&c, id, bytes, here] { return c.init(c.self, here, 1, 0, id->data(), bytes, nullptr, nullptr); }},
      {"comm.rank of null",
       [&c] {
         int32_t rank = 0;
         return c.rank(c.self, nullptr, &rank);
       }},
      {"comm.supports into null",
       [&c] { return c.supports(c.self, CONCORD_COMM_ALL_REDUCE, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, nullptr); }},
  };
}

std::vector<Refusal> collective_refusals(Context& t, concord_comm comm, concord_stream stream) {
  const concord_comm_table& c = t.comms();
  auto send = scratch(t);
  auto recv = scratch(t);
  const int32_t world = t.world();
  const auto all_reduce = [=, &c](bool null_send, bool null_recv, int64_t count, concord_dtype dtype, int32_t reduce) {
    return [=, &c] {
      return c.all_reduce(c.self, comm, null_send ? nullptr : send->get(), null_recv ? nullptr : recv->get(), count,
                          dtype, reduce, stream);
    };
  };
  const auto reduce_to = [=, &c](int32_t root) {
    return [=, &c] {
      return c.reduce(c.self, comm, send->get(), recv->get(), 4, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, root, stream);
    };
  };
  const auto broadcast = [=, &c](int64_t count, concord_dtype dtype, int32_t root) {
    return [=, &c] { return c.broadcast(c.self, comm, send->get(), recv->get(), count, dtype, root, stream); };
  };
  return {
      {"comm.all_reduce on a null communicator",
       [=, &c] {
         return c.all_reduce(c.self, nullptr, send->get(), recv->get(), 4, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM,
                             stream);
       }},
      {"comm.all_reduce of -1 elements", all_reduce(false, false, -1, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM)},
      {"comm.all_reduce of dtype 0", all_reduce(false, false, 4, 0, CONCORD_REDUCE_SUM)},
      {"comm.all_reduce of dtype 99", all_reduce(false, false, 4, 99, CONCORD_REDUCE_SUM)},
      {"comm.all_reduce by reduction 0", all_reduce(false, false, 4, CONCORD_DTYPE_F32, 0)},
      {"comm.all_reduce by reduction 99", all_reduce(false, false, 4, CONCORD_DTYPE_F32, 99)},
      {"comm.all_reduce from null", all_reduce(true, false, 4, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM)},
      {"comm.all_reduce into null", all_reduce(false, true, 4, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM)},
      {"comm.reduce to root -1", reduce_to(-1)},
      {"comm.reduce to a root that does not exist", reduce_to(world)},
      {"comm.broadcast from a root that does not exist", broadcast(4, CONCORD_DTYPE_F32, world)},
      {"comm.broadcast of -1 elements", broadcast(-1, CONCORD_DTYPE_F32, 0)},
      {"comm.broadcast of dtype 99", broadcast(4, 99, 0)},
      {"comm.all_gather of -1 elements",
       [=, &c] { return c.all_gather(c.self, comm, send->get(), recv->get(), -1, CONCORD_DTYPE_F32, stream); }},
      {"comm.all_gather into null",
       [=, &c] { return c.all_gather(c.self, comm, send->get(), nullptr, 4, CONCORD_DTYPE_F32, stream); }},
      {"comm.reduce_scatter of -1 elements",
       [=, &c] {
         return c.reduce_scatter(c.self, comm, send->get(), recv->get(), -1, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM,
                                 stream);
       }},
      {"comm.reduce_scatter by reduction 99",
       [=, &c] { return c.reduce_scatter(c.self, comm, send->get(), recv->get(), 4, CONCORD_DTYPE_F32, 99, stream); }},
      {"comm.all_to_all of -1 elements",
       [=, &c] { return c.all_to_all(c.self, comm, send->get(), recv->get(), -1, CONCORD_DTYPE_F32, stream); }},
      {"comm.all_to_all from null",
       [=, &c] { return c.all_to_all(c.self, comm, nullptr, recv->get(), 4, CONCORD_DTYPE_F32, stream); }},
  };
}

std::vector<Refusal> transfer_refusals(Context& t, concord_comm comm, concord_stream stream) {
  const concord_comm_table& c = t.comms();
  auto send = scratch(t);
  auto recv = scratch(t);
  const auto world = static_cast<size_t>(t.world());
  const int32_t beyond = t.world();
  const int32_t peer = t.rank();
  const auto vector_call = [=, &c](bool null_counts, int64_t first_count) {
    return [=, &c] {
      std::vector<int64_t> counts(world, 1);
      const std::vector<int64_t> offsets(world, 0);
      counts[0] = first_count;
      return c.all_to_all_v(c.self, comm, send->get(), null_counts ? nullptr : counts.data(), offsets.data(),
                            recv->get(), counts.data(), offsets.data(), CONCORD_DTYPE_F32, stream);
    };
  };
  const auto batch = [=, &c](concord_p2p_item item, int64_t count = 1) {
    return [=, &c]() mutable {
      item.buffer = send->get();
      return c.batch_p2p(c.self, comm, &item, count, stream);
    };
  };
  std::vector<Refusal> list = {
      {"comm.all_to_all_v with null counts", vector_call(true, 1)},
      {"comm.all_to_all_v with a count of -1", vector_call(false, -1)},
      {"comm.batch_p2p with a peer that does not exist",
       batch({CONCORD_P2P_SEND, beyond, nullptr, 1, CONCORD_DTYPE_F32, 0})},
      {"comm.batch_p2p with peer -1", batch({CONCORD_P2P_RECV, -1, nullptr, 1, CONCORD_DTYPE_F32, 0})},
      {"comm.batch_p2p of kind 0", batch({0, peer, nullptr, 1, CONCORD_DTYPE_F32, 0})},
      {"comm.batch_p2p of kind 3", batch({3, peer, nullptr, 1, CONCORD_DTYPE_F32, 0})},
      {"comm.batch_p2p of -1 elements", batch({CONCORD_P2P_SEND, peer, nullptr, -1, CONCORD_DTYPE_F32, 0})},
      {"comm.batch_p2p of dtype 99", batch({CONCORD_P2P_SEND, peer, nullptr, 1, 99, 0})},
      {"comm.batch_p2p of -1 items", batch({CONCORD_P2P_SEND, peer, nullptr, 1, CONCORD_DTYPE_F32, 0}, -1)},
      {"comm.batch_p2p of null items", [=, &c] { return c.batch_p2p(c.self, comm, nullptr, 2, stream); }},
  };
  if (t.world() > 1 || t.capability(CONCORD_CAP_COMM_P2P_SELF) != 0) {
    const int32_t next = (peer + 1) % beyond;
    const int32_t previous = (peer + beyond - 1) % beyond;
    list.push_back({"comm.batch_p2p with a reserved field that is not 0", [=, &c] {
                      const concord_p2p_item items[] = {
                          {CONCORD_P2P_SEND, next, send->get(), 1, CONCORD_DTYPE_F32, 0},
                          {CONCORD_P2P_RECV, previous, recv->get(), 1, CONCORD_DTYPE_F32, 1}};
                      return c.batch_p2p(c.self, comm, items, 2, stream);
                    }});
  }
  return list;
}

}  // namespace concord::conformance
