// cuda/sim/graph.cc: see the header.
#include "cuda/sim/graph.h"

#include <algorithm>
#include <utility>

namespace simcuda {

bool Graph::Reaches(const std::vector<std::size_t>& ends, const std::vector<std::size_t>& searched) const {
  std::vector<bool> reached(nodes.size(), false);
  for (const std::size_t end : ends) reached[end] = true;
  for (std::size_t i = nodes.size(); i-- > 0;) {  // what a node waits for has a smaller number
    if (!reached[i]) continue;
    for (const std::size_t before : nodes[i].after) reached[before] = true;
  }
  return std::all_of(searched.begin(), searched.end(), [&](std::size_t node) { return reached[node]; });
}

void GraphExec::Launch(Context& context, const std::shared_ptr<Stream>& stream) {
  const gpumem::MutexLock lock(&mu_);
  // An empty graph is still a point in the stream, and waits for the launch before it.
  last_ = context.Enqueue(stream, [] { return CUDA_SUCCESS; }, {last_});
  for (const GraphNode& node : graph_->nodes) last_ = node.submit(context, stream, {});
}

// Never destroyed, as the others (streams.cc).
Registry<CUgraph, const Graph>& Graphs() {
  static auto* const registry = new Registry<CUgraph, const Graph>(0x60001000);
  return *registry;
}
Registry<CUgraphExec, GraphExec>& GraphExecs() {
  static auto* const registry = new Registry<CUgraphExec, GraphExec>(0x70001000);
  return *registry;
}

}  // namespace simcuda
