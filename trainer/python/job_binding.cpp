#include "trainer/python/job_binding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/config_error.h"
#include "core/mesh/initialize.h"
#include "core/mesh/job_environment.h"
#include "core/ops/dropout.h"
#include "core/ops/loss/vocab_share.h"
#include "core/parallel/mappings.h"
#include "core/parallel/parallel_linear.h"
#include "core/parallel/vocabulary.h"
#include "trainer/arguments/table.h"
#include "trainer/python/gil.h"
#include "trainer/python/group_binding.h"

namespace concord {
namespace {

namespace py = pybind11;
using at::Tensor;

// Returns the address of the member of |arguments| that |argument| sets; null for enumerations and numbers of steps.
struct MemberAddress {
  TrainingArguments& arguments;

  template <class Field>
  const void* operator()(const Field&) const {
    return nullptr;
  }
  template <class Value>
  const void* operator()(const ArgumentField<Value>& field) const {
    return &field(arguments);
  }
};

// Returns the names of the settings that are members of InitializeArgs.
std::vector<std::string> job_settings() {
  TrainingArguments arguments;
  const auto* const begin = reinterpret_cast<const char*>(&arguments.job);
  const auto* const end = begin + sizeof arguments.job;
  std::vector<std::string> names;
  for (const Argument* each : all_arguments()) {
    const void* const member = std::visit(MemberAddress{arguments}, each->member);
    if (member >= begin && member < end) names.emplace_back(each->name);
  }
  return names;
}

// Joins the job with |args|, words of the command line of `concord train` that are settings of a job.
void initialize_job(const std::vector<std::string>& args) {
  const CommandLine line = parse_command_line(args);
  const std::vector<std::string> known = job_settings();
  const auto is_known = [&](const std::string& name) { return std::ranges::count(known, name) > 0; };
  const auto other = std::ranges::find_if_not(line.given, is_known);
  if (other != line.given.end() || line.help || line.print_config || line.json || !line.config.empty()) {
    throw ConfigError(fmt::format("initialize: {} is not a setting of a job; must be one of: {}",
                                  other != line.given.end() ? *other : "an option of the program",
                                  fmt::join(known, ", ")));
  }
  without_gil([&] { initialize(line.arguments.job); });
}

py::dict describe_job() {
  const ParallelContext& job = parallel_context();
  const RankCoordinates& at = job.coordinates();
  const RankLayout& layout = job.layout();
  py::dict rank, size;
  const auto add = [&](const char* axis, int64_t index, int64_t count) {
    rank[axis] = index;
    size[axis] = count;
  };
  add("tp", at.tp, layout.tp());
  add("cp", at.cp, layout.cp());
  add("dp", at.dp, layout.dp());
  add("pp", at.pp, layout.pp());
  add("etp", at.etp, layout.etp());
  add("ep", at.ep, layout.ep());
  add("edp", at.edp, layout.edp());
  py::dict result;
  result["rank"] = job.rank();
  result["world_size"] = job.world();
  result["local_rank"] = read_job_environment().local_rank;
  result["device"] = py::cast(job.torch_device());
  result["coordinates"] = rank;
  result["sizes"] = size;
  return result;
}

// A fork of the random streams for `with`: entered and left on the same thread.
class ForkRng {
 public:
  explicit ForkRng(std::string name) : name_(std::move(name)) {}
  void enter() { fork_.reset(new RngTracker::Fork(parallel_context().rng().fork(name_))); }
  void leave() { fork_.reset(); }

 private:
  std::string name_;
  std::unique_ptr<RngTracker::Fork> fork_;
};

ParallelLinearOptions linear_options(const std::string& name, bool sequence_parallel) {
  ParallelLinearOptions options;
  options.name = name;
  options.sequence_parallel = sequence_parallel;
  return options;
}

Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& target, double label_smoothing, double z_loss,
                                    int64_t ignore_index, int64_t vocabulary, const std::string& group) {
  return without_gil([&] {
    return cross_entropy(
        logits, target,
        {.vocabulary = vocabulary, .ignore_index = ignore_index, .label_smoothing = label_smoothing, .z_loss = z_loss},
        vocab_share(group_called(group)));
  });
}

}  // namespace

void bind_job(py::module_& module) {
  module.def("initialize", &initialize_job);
  module.def("finalize", [] { without_gil([] { finalize(); }); });
  module.def("is_initialized", &is_initialized);
  module.def("describe_job", &describe_job);
  module.def("job_settings", &job_settings);
  py::class_<ForkRng>(module, "ForkRng")
      .def(py::init<std::string>())
      .def("__enter__", &ForkRng::enter)
      .def("__exit__", [](ForkRng& self, const py::args&) { self.leave(); });
}

void bind_layers(py::module_& module) {
  using Optional = std::optional<Tensor>;
  const auto linear = [&](const char* name, auto function) {
    module.def(name, [function](const Tensor& x, const Tensor& weight, const Optional& bias, const std::string& layer,
                                bool sequence_parallel, const std::string& group) {
      return without_gil([&] {
        return function(x, weight, bias.value_or(Tensor()), group_called(group),
                        linear_options(layer, sequence_parallel), nullptr, LowRank{});
      });
    });
  };
  linear("column_parallel_linear", &column_parallel_linear);
  linear("row_parallel_linear", &row_parallel_linear);
  module.def("vocab_parallel_embedding", [](const Tensor& weight, const Tensor& ids, int64_t vocabulary,
                                            bool sequence_parallel, const std::string& group) {
    return without_gil(
        [&] { return vocab_parallel_embedding(weight, ids, vocabulary, group_called(group), sequence_parallel); });
  });
  module.def("vocab_parallel_cross_entropy", &vocab_parallel_cross_entropy);
  const auto map = [&](const char* name, Tensor (*function)(const Tensor&, ProcessGroup&)) {
    module.def(name, [function](const Tensor& x, const std::string& group) {
      return without_gil([&] { return function(x, group_called(group)); });
    });
  };
  map("copy_to_region", &copy_to_region);
  map("reduce_from_region", &reduce_from_region);
  const auto map_dim = [&](const char* name, Tensor (*function)(const Tensor&, ProcessGroup&, int64_t)) {
    module.def(name, [function](const Tensor& x, const std::string& group, int64_t dim) {
      return without_gil([&] { return function(x, group_called(group), dim); });
    });
  };
  map_dim("gather_into_region", &gather_into_region);
  map_dim("reduce_scatter_to_region", &reduce_scatter_to_region);
  module.def("dropout", [](const Tensor& x, double p) {
    return without_gil([&] { return dropout(x, p, parallel_context().rng().current()); });
  });
}

}  // namespace concord
