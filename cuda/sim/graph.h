// cuda/sim/graph.h: graphs: work that was captured and not run, and its launching.
#ifndef GPUMEM_CUDA_SIM_GRAPH_H_
#define GPUMEM_CUDA_SIM_GRAPH_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"

namespace simcuda {

// Puts a piece of work into a stream, after `after`: now, or each time a graph that it was captured into is launched.
using Submission =
    std::function<Mark(Context& context, const std::shared_ptr<Stream>& stream, std::vector<Mark> after)>;

struct GraphNode {
  Submission submit;
  std::vector<std::size_t> after;  // earlier nodes
};

// Immutable once the capture has ended. The nodes stand in the order of their capture, in which every node comes after
// those that it waits for: a launch runs them one after the other in that order.
struct Graph {
  std::vector<GraphNode> nodes;

  // Whether each of the nodes `searched` is one of `ends` or comes before one of them.
  bool Reaches(const std::vector<std::size_t>& ends, const std::vector<std::size_t>& searched) const;
};

// Thread-safe.
class GraphExec {
 public:
  explicit GraphExec(std::shared_ptr<const Graph> graph) : graph_(std::move(graph)) {}

  // Two launches of one GraphExec never overlap, whatever their streams.
  void Launch(Context& context, const std::shared_ptr<Stream>& stream);

 private:
  const std::shared_ptr<const Graph> graph_;
  gpumem::Mutex mu_;
  Mark last_ GPUMEM_GUARDED_BY(mu_);
};

Registry<CUgraph, const Graph>& Graphs();
Registry<CUgraphExec, GraphExec>& GraphExecs();

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_GRAPH_H_
