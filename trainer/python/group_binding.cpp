#include "trainer/python/group_binding.h"

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/mesh/initialize.h"
#include "core/torch/dtype.h"
#include "platform/cpp/comm.hpp"
#include "trainer/python/device_binding.h"
#include "trainer/python/gil.h"

namespace concord {
namespace {

namespace py = pybind11;
using at::Tensor;

constexpr std::pair<const char*, ReduceOp> kReduceOps[] = {{"sum", ReduceOp::kSum},
                                                           {"prod", ReduceOp::kProd},
                                                           {"min", ReduceOp::kMin},
                                                           {"max", ReduceOp::kMax},
                                                           {"avg", ReduceOp::kAvg}};

ReduceOp reduce_op(const std::string& name) {
  for (const auto& [known, op] : kReduceOps) {
    if (name == known) return op;
  }
  throw ConfigError(fmt::format("op is {}; must be one of: sum, prod, min, max, avg", quoted(name)));
}

// ------------------------------------------------------------------------------------------------- groups of the job

// A group of the current job, by its name: it is looked up at each call, so that a group of a job that has ended is an
// error.
struct NamedGroup {
  std::string kind;
  ProcessGroup& group() const { return group_called(kind); }
};

// Returns the Work if |async_op|, else None after waiting for it, as torch.distributed does.
template <class Issue>
py::object issue(const NamedGroup& named, bool async_op, Issue call) {
  Work work = without_gil([&] {
    Work begun = call(named.group());
    if (!async_op) begun.wait();
    return begun;
  });
  return async_op ? py::cast(std::move(work)) : py::none();
}

void bind_collectives(py::class_<NamedGroup>& type) {
  const auto async_op = py::arg("async_op") = false;
  type.def(
          "all_reduce",
          [](const NamedGroup& self, const Tensor& tensor, const std::string& op, bool async) {
            return issue(self, async, [&](ProcessGroup& group) { return group.all_reduce(tensor, reduce_op(op)); });
          },
          py::arg("tensor"), py::arg("op") = "sum", async_op)
      .def(
          "broadcast",
          [](const NamedGroup& self, const Tensor& tensor, int64_t root, bool async) {
            return issue(self, async, [&](ProcessGroup& group) { return group.broadcast(tensor, root); });
          },
          py::arg("tensor"), py::arg("root") = 0, async_op)
      .def(
          "all_gather",
          [](const NamedGroup& self, const Tensor& output, const Tensor& input, bool async) {
            return issue(self, async, [&](ProcessGroup& group) { return group.all_gather(output, input); });
          },
          py::arg("output"), py::arg("input"), async_op)
      .def(
          "reduce_scatter",
          [](const NamedGroup& self, const Tensor& output, const Tensor& input, const std::string& op, bool async) {
            return issue(self, async,
                         [&](ProcessGroup& group) { return group.reduce_scatter(output, input, reduce_op(op)); });
          },
          py::arg("output"), py::arg("input"), py::arg("op") = "sum", async_op)
      .def(
          "all_to_all",
          [](const NamedGroup& self, const Tensor& output, const Tensor& input, bool async) {
            return issue(self, async, [&](ProcessGroup& group) { return group.all_to_all(output, input); });
          },
          py::arg("output"), py::arg("input"), async_op)
      .def(
          "batch_p2p",
          [](const NamedGroup& self, const std::vector<std::pair<Tensor, int64_t>>& sends,
             const std::vector<std::pair<Tensor, int64_t>>& receives, bool async) {
            std::vector<Transfer> transfers;
            for (const auto& [tensor, to] : sends) transfers.push_back(send(tensor, to));
            for (const auto& [tensor, from] : receives) transfers.push_back(recv(tensor, from));
            return issue(self, async, [&](ProcessGroup& group) { return group.batch_p2p(transfers); });
          },
          py::arg("sends") = py::tuple(), py::arg("receives") = py::tuple(), async_op)
      .def(
          "barrier",
          [](const NamedGroup& self, bool async) {
            return issue(self, async, [](ProcessGroup& group) { return group.barrier(); });
          },
          async_op);
}

void bind_job_groups(py::module_& module) {
  py::class_<Work>(module, "Work")
      .def("wait", [](const Work& work) { without_gil([&] { work.wait(); }); })
      .def("synchronize", [](const Work& work) { without_gil([&] { work.synchronize(); }); })
      .def("is_completed", &Work::is_completed);
  py::class_<NamedGroup> type(module, "ProcessGroup");
  type.def_property_readonly("name", [](const NamedGroup& self) { return self.kind; })
      .def_property_readonly("rank", [](const NamedGroup& self) { return self.group().rank(); })
      .def_property_readonly("size", [](const NamedGroup& self) { return self.group().size(); })
      .def_property_readonly("ranks", [](const NamedGroup& self) { return self.group().ranks().members(); })
      .def("__repr__", [](const NamedGroup& self) {
        const ProcessGroup& group = self.group();
        return fmt::format("<concord group {} of ranks {}>", group.name(), group.ranks().to_string());
      });
  bind_collectives(type);
}

// ----------------------------------------------------------------------------------------- communicators of one's own

// Operations are enqueued on a stream and return at once; on the host's default stream they run in the call. Tensors
// are kept until the stream has passed them.
class PythonCommunicator {
 public:
  PythonCommunicator(int32_t world, int32_t rank, const std::string& id, const std::string& name, double timeout)
      : device_(Device::current(current_platform())) {
    const UniqueId bytes(id.begin(), id.end());
    if (const size_t wanted = create_unique_id(device_.platform()).size(); bytes.size() != wanted) {
      throw ConfigError(
          fmt::format("unique_id has {} bytes; must be the {} bytes that Communicator.unique_id() returned on one rank",
                      bytes.size(), wanted));
    }
    if (world < 1 || rank < 0 || rank >= world) {
      throw ConfigError(fmt::format("rank {} of {}: must be from 0 to {}", rank, world, world - 1));
    }
    const CommOptions options{name, std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000))};
    comm_ = without_gil([&] { return std::make_unique<Communicator>(device_, world, rank, bytes, options); });
  }
  ~PythonCommunicator() {
    without_gil([&] { comm_.reset(); });
  }

  const Communicator& comm() const { return *comm_; }

  // |tensors| must be on the device and of one type; |call| gets the stream and that type.
  template <class Call>
  void run(const char* name, const py::object& stream, const std::vector<Tensor>& tensors, Call call) const {
    DType type = DType::kU8;
    for (const Tensor& tensor : tensors) {
      require_on_device(name, tensor, device_);
      const std::optional<DType> found = platform_dtype(tensor.scalar_type());
      if (!found || tensor.scalar_type() != tensors[0].scalar_type()) {
        throw ConfigError(fmt::format("{}: a tensor of {}; must be of one type that platform {} has", name,
                                      c10::toString(tensor.scalar_type()), device_.platform().name()));
      }
      type = *found;
    }
    const std::shared_ptr<PythonStream> on = stream_or_current(stream);
    without_gil([&] { call(on->stream(), type); });
    for (const Tensor& tensor : tensors) on->keep(tensor);
  }

  // |large| has as many elements as those of all ranks together.
  void require_parts(const char* name, const Tensor& large, const Tensor& small) const {
    if (large.numel() == small.numel() * comm_->size()) return;
    throw ConfigError(fmt::format("{}: tensors of {} and {} elements; the larger must have those of {} ranks", name,
                                  large.numel(), small.numel(), comm_->size()));
  }

 private:
  Device device_;
  std::unique_ptr<Communicator> comm_;
};

void bind_reductions(py::class_<PythonCommunicator>& type) {
  const auto stream = py::arg("stream") = py::none();
  type.def(
          "all_reduce",
          [](const PythonCommunicator& self, const Tensor& tensor, const std::string& op, const py::object& on) {
            const ReduceOp reduce = reduce_op(op);
            self.run("all_reduce", on, {tensor}, [&](const Stream& s, DType dtype) {
              self.comm().all_reduce(s, tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), dtype, reduce);
            });
          },
          py::arg("tensor"), py::arg("op") = "sum", stream)
      .def(
          "reduce_scatter",
          [](const PythonCommunicator& self, const Tensor& output, const Tensor& input, const std::string& op,
             const py::object& on) {
            const ReduceOp reduce = reduce_op(op);
            self.require_parts("reduce_scatter", input, output);
            self.run("reduce_scatter", on, {output, input}, [&](const Stream& s, DType dtype) {
              self.comm().reduce_scatter(s, input.data_ptr(), output.data_ptr(), output.numel(), dtype, reduce);
            });
          },
          py::arg("output"), py::arg("input"), py::arg("op") = "sum", stream);
}

void bind_moves(py::class_<PythonCommunicator>& type) {
  const auto stream = py::arg("stream") = py::none();
  type.def(
          "broadcast",
          [](const PythonCommunicator& self, const Tensor& tensor, int32_t root, const py::object& on) {
            self.run("broadcast", on, {tensor}, [&](const Stream& s, DType dtype) {
              self.comm().broadcast(s, tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), dtype, root);
            });
          },
          py::arg("tensor"), py::arg("root") = 0, stream)
      .def(
          "all_gather",
          [](const PythonCommunicator& self, const Tensor& output, const Tensor& input, const py::object& on) {
            self.require_parts("all_gather", output, input);
            self.run("all_gather", on, {output, input}, [&](const Stream& s, DType dtype) {
              self.comm().all_gather(s, input.data_ptr(), output.data_ptr(), input.numel(), dtype);
            });
          },
          py::arg("output"), py::arg("input"), stream)
      .def(
          "all_to_all",
          [](const PythonCommunicator& self, const Tensor& output, const Tensor& input, const py::object& on) {
            const int64_t parts = self.comm().size();
            if (output.numel() != input.numel() || input.numel() % parts != 0) {
              throw ConfigError(
                  fmt::format("all_to_all: tensors of {} and {} elements; must have the same number, a "
                              "multiple of {} ranks",
                              output.numel(), input.numel(), parts));
            }
            self.run("all_to_all", on, {output, input}, [&](const Stream& s, DType dtype) {
              self.comm().all_to_all(s, input.data_ptr(), output.data_ptr(), input.numel() / parts, dtype);
            });
          },
          py::arg("output"), py::arg("input"), stream)
      .def(
          "barrier",
          [](const PythonCommunicator& self, const py::object& on) {
            self.run("barrier", on, {}, [&](const Stream& s, DType) { self.comm().barrier(s); });
          },
          stream);
}

void bind_communicator(py::module_& module) {
  py::class_<PythonCommunicator> type(module, "Communicator");
  type.def(py::init<int32_t, int32_t, std::string, std::string, double>(), py::arg("world_size"), py::arg("rank"),
           py::arg("unique_id"), py::arg("name") = "python", py::arg("timeout") = 0.0)
      .def_static("unique_id",
                  [] {
                    const UniqueId id = create_unique_id(current_platform());
                    return py::bytes(reinterpret_cast<const char*>(id.data()), id.size());
                  })
      .def_property_readonly("rank", [](const PythonCommunicator& self) { return self.comm().rank(); })
      .def_property_readonly("size", [](const PythonCommunicator& self) { return self.comm().size(); })
      .def("abort", [](const PythonCommunicator& self) { self.comm().abort(); });
  bind_reductions(type);
  bind_moves(type);
  module.attr("Platform").attr("Communicator") = type;
}

}  // namespace

ProcessGroup& group_called(const std::string& kind) {
  ParallelContext& job = parallel_context();
  if (kind == "world") return job.world_group();
  std::string names = "world";
  for (const GroupKind each : all_group_kinds()) {
    if (kind == to_string(each)) return job.group(each);
    names += fmt::format(", {}", to_string(each));
  }
  throw ConfigError(fmt::format("there is no group {}; must be one of: {}", quoted(kind), names));
}

void bind_groups(py::module_& module) {
  bind_job_groups(module);
  bind_communicator(module);
  module.def("group", [](const std::string& kind) {
    group_called(kind);
    return NamedGroup{kind};
  });
}

}  // namespace concord
