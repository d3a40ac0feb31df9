#include "backends/cuda/graph.h"

#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {

void Graphs::begin_capture(concord_stream stream) {
  sdk::check_not_null(stream, "stream");
  // Thread-local: what other threads do (the guard, a data loader that allocates) neither fails nor ends the capture.
  check_cuda(cudaStreamBeginCapture(vendor(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

concord_graph Graphs::end_capture(concord_stream stream) {
  sdk::check_not_null(stream, "stream");
  cudaGraph_t captured = nullptr;
  check_cuda(cudaStreamEndCapture(vendor(stream), &captured), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiateWithFlags(&executable, captured, 0);
  cudaGraphDestroy(captured);
  check_cuda(error, "cudaGraphInstantiateWithFlags");
  const auto graph = reinterpret_cast<concord_graph>(executable);
  live_.add(graph);
  return graph;
}

void Graphs::launch(concord_graph graph, concord_stream stream) {
  sdk::check_not_null(graph, "graph");
  check_cuda(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), vendor(stream)), "cudaGraphLaunch");
  communicators_.note_graph(stream);
}

void Graphs::destroy(concord_graph graph) {
  if (graph == nullptr) return;
  live_.remove(graph);
  check_cuda(cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph)), "cudaGraphExecDestroy");
}

}  // namespace concord::cuda
