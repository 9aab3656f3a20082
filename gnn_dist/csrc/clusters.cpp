// Clusters of a hypergraph's nodes that share much, each inside one part: a coarser hypergraph on
// which one move moves many nodes.
//
// Source: heavy-edge rating, "k-way Hypergraph Partitioning via n-Level Recursive Bisection" (Schlag
// et al., arXiv 1511.03137), section 3.
#include "draws.h"
#include "hypergraph.h"

namespace gnn_dist {

namespace {

class Clusters {
 public:
  Clusters(const Hypergraph& graph, const int64_t* node_weight, const int64_t* most,
           int64_t num_weights, const int32_t* part)
      : graph_(graph),
        most_(most),
        num_weights_(num_weights),
        part_(part),
        leader_(graph.num_nodes()),
        is_joined_(graph.num_nodes()),
        weight_(node_weight, node_weight + graph.num_nodes() * num_weights),
        rating_(graph.num_nodes()) {
    for (int64_t v = 0; v < graph.num_nodes(); ++v) leader_[v] = static_cast<int32_t>(v);
  }

  // Lets every node that is still alone join the cluster that it shares most with.
  void join(uint64_t key, int64_t most_pins) {
    std::vector<std::pair<uint64_t, int32_t>> order;
    for (int32_t v = 0; v < graph_.num_nodes(); ++v) {
      order.push_back({word(row_key(key, static_cast<uint64_t>(v)), 0), v});
    }
    std::sort(order.begin(), order.end());
    for (const auto& [tie, v] : order) {
      if (is_joined_[v]) continue;
      const int32_t to = best(v, most_pins);
      if (to < 0) continue;
      leader_[v] = to;
      is_joined_[v] = is_joined_[to] = 1;
      for (int64_t k = 0; k < num_weights_; ++k) {
        weight_[to * num_weights_ + k] += weight_[v * num_weights_ + k];
      }
    }
  }
  int32_t leader(int64_t v) const { return leader_[v]; }

 private:
  bool fits(int32_t v, int32_t to) const {
    for (int64_t k = 0; k < num_weights_; ++k) {
      const int64_t own = weight_[v * num_weights_ + k];
      if (own > 0 && own + weight_[to * num_weights_ + k] > most_[k]) return false;
    }
    return true;
  }
  // A net of few pins says more about them, and a light cluster should grow before a heavy one.
  int32_t best(int32_t v, int64_t most_pins) {
    near_.clear();
    for (const int32_t net : graph_.nets[v]) {
      const int64_t size = graph_.pins.size(net);
      if (size < 2 || size > most_pins) continue;
      const double share =
          static_cast<double>(graph_.net_weight[net]) / static_cast<double>(size - 1);
      for (const int32_t pin : graph_.pins[net]) {
        if (part_[pin] != part_[v] || pin == v) continue;
        const int32_t to = leader_[pin];
        if (rating_[to] == 0) near_.push_back(to);
        rating_[to] += share;
      }
    }
    int32_t best = -1;
    double most = 0;
    for (const int32_t to : near_) {
      const double rating = rating_[to] / static_cast<double>(1 + weight_[to * num_weights_]);
      rating_[to] = 0;
      if (to == v || !fits(v, to)) continue;
      if (rating > most || (rating == most && to < best)) most = rating, best = to;
    }
    return best;
  }

  const Hypergraph& graph_;
  const int64_t* most_;
  const int64_t num_weights_;
  const int32_t* part_;
  std::vector<int32_t> leader_;
  std::vector<char> is_joined_;
  std::vector<int64_t> weight_;
  std::vector<double> rating_;
  std::vector<int32_t> near_;
};

}  // namespace

Tensor cluster_nodes(Tensor net_ptr, Tensor nets, Tensor pin_ptr, Tensor pins, Tensor net_weight,
                     Tensor node_weight, Tensor most, Tensor assignment, int64_t most_pins,
                     int64_t key) {
  const Hypergraph graph = hypergraph(net_ptr, nets, pin_ptr, pins, net_weight);
  const int64_t num_nodes = graph.num_nodes();
  check(node_weight.dim() == 2, "node_weight must have two dimensions");
  const int64_t num_weights = node_weight.size(1);
  check(num_weights > 0, "node_weight must have at least one column");
  const auto* weight = matrix(node_weight, num_nodes, num_weights, "node_weight");
  const auto* limit = flat<int64_t>(most, ScalarType::Long, "most");
  check(most.size(0) == num_weights, "most must have one element per weight");
  const auto* part = flat<int32_t>(assignment, ScalarType::Int, "assignment");
  check(assignment.size(0) == num_nodes, "assignment must have one element per node");
  Clusters clusters(graph, weight, limit, num_weights, part);
  clusters.join(static_cast<uint64_t>(key), most_pins);
  const Tensor out = torch::stable::new_empty(assignment, {num_nodes});
  auto* number = static_cast<int32_t*>(out.data_ptr());
  int32_t next = 0;
  for (int64_t v = 0; v < num_nodes; ++v) {
    if (clusters.leader(v) == v) number[v] = next++;
  }
  for (int64_t v = 0; v < num_nodes; ++v) number[v] = number[clusters.leader(v)];
  return out;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "cluster_nodes(Tensor net_ptr, Tensor nets, Tensor pin_ptr, Tensor pins, Tensor net_weight, "
      "Tensor node_weight, Tensor most, Tensor assignment, int most_pins, int key) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("cluster_nodes", TORCH_BOX(&gnn_dist::cluster_nodes));
}
