#include "core/mesh/agreement.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/mesh/job_environment.h"

namespace concord {
namespace {

constexpr size_t kMaxProblem = 2000;  // bytes of a message to the other ranks

}  // namespace

int64_t all_reduce_scalar(ParallelContext& job, int64_t value, ReduceOp op) {
  const at::Tensor tensor = at::full({1}, value, at::kLong).to(job.torch_device());
  job.world_group().all_reduce(tensor, op).synchronize();
  return tensor.item<int64_t>();
}

std::vector<int64_t> all_gather_scalar(ParallelContext& job, int64_t value) {
  const at::Tensor own = at::full({1}, value, at::kLong).to(job.torch_device());
  at::Tensor all = at::empty({job.world()}, own.options());
  job.world_group().all_gather(all, own).synchronize();
  all = all.to(at::kCPU);
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + job.world()};
}

Machines machines_of(ParallelContext& job) {
  const JobEnvironment own = read_job_environment();
  return machines_from(all_gather_scalar(job, job.rank() - own.local_rank), all_gather_scalar(job, own.local_world));
}

std::string broadcast_text(ParallelContext& job, const std::string& text, int64_t root) {
  const bool is_root = job.rank() == root;
  const int64_t size = all_reduce_scalar(job, is_root ? static_cast<int64_t>(text.size()) : 0, ReduceOp::kMax);
  at::Tensor bytes = at::zeros({size}, at::kByte);
  if (is_root) std::copy(text.begin(), text.end(), static_cast<char*>(bytes.data_ptr()));
  bytes = bytes.to(job.torch_device());
  if (size > 0) job.world_group().broadcast(bytes, root).synchronize();
  bytes = bytes.cpu();
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(size)};
}

std::optional<RankText> first_text(ParallelContext& job, const std::string& text) {
  // The lowest rank with a text, counted from the end; 0 if no rank has one.
  const int64_t found = all_reduce_scalar(job, text.empty() ? 0 : job.world() - job.rank(), ReduceOp::kMax);
  if (found == 0) return std::nullopt;
  const int64_t rank = job.world() - found;
  return RankText{rank, broadcast_text(job, text, rank)};
}

void run_and_propagate_errors(ParallelContext& job, const std::function<void()>& body) {
  std::string problem;
  try {
    body();
  } catch (const ConfigError& error) {
    problem = fmt::format("C{}", error.what());
  } catch (const std::exception& error) {
    problem = fmt::format("R{}", error.what());
  }
  const std::optional<RankText> first = first_text(job, problem);
  if (!first) return;
  job.flight().peers().blame(first->rank);
  const std::string message =
      fmt::format("{} (rank {})", printable(std::string_view(first->text).substr(1), kMaxProblem), first->rank);
  if (first->text.front() == 'C') throw ConfigError(message);
  throw std::runtime_error(message);
}

}  // namespace concord
