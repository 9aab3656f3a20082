// One of each node's clones becomes its root, so that all parts have equally much to do.
#include <cmath>

#include "part_sets.h"

namespace gnn_dist {

namespace {

// What a part's roots cost: their number, how many of them train, and how many other clones send
// to them.
constexpr int kCosts = 3;
// Sending is the least of them: at equal weight, roots of 16 parts were up to 10 % out of balance
// on cora and tolokers, and then 3 %.
constexpr double kWeights[kCosts] = {1, 1, 0.0625};

struct Costs {
  int64_t of[kCosts];
};

struct RootChoice {
  CloneTable clones;
  const bool* train;
  int64_t num_parts;
  uint64_t key;

  int64_t num_clones(int64_t node) const {
    int64_t count = 0;
    for (int64_t w = 0; w < clones.words; ++w) count += __builtin_popcountll(clones.row(node)[w]);
    return count;
  }
  Costs costs(int64_t node, int64_t count) const {
    return {{1, train != nullptr && train[node], count - 1}};
  }
};

// Nodes by number of clones, so that those with most choice come last; those without any, which
// may go anywhere, after them.
std::vector<int64_t> nodes_by_choice(const RootChoice& call) {
  const int64_t num_nodes = call.clones.num_nodes, kinds = call.num_parts + 1;
  std::vector<int64_t> next(kinds + 1), order(num_nodes);
  const auto kind = [&](int64_t node) { return (call.num_clones(node) + kinds - 1) % kinds; };
  for (int64_t node = 0; node < num_nodes; ++node) ++next[kind(node) + 1];
  for (int64_t i = 0; i < kinds; ++i) next[i + 1] += next[i];
  for (int64_t node = 0; node < num_nodes; ++node) order[next[kind(node)]++] = node;
  return order;
}

class RootCosts {
 public:
  RootCosts(const RootChoice& call) : call_(call), of_part_(call.num_parts) {
    double total[kCosts] = {};
    for (int64_t node = 0; node < call.clones.num_nodes; ++node) {
      const int64_t count = std::max<int64_t>(1, call.num_clones(node));
      const Costs costs = call.costs(node, count);
      for (int k = 0; k < kCosts; ++k) total[k] += static_cast<double>(costs.of[k]);
    }
    for (int k = 0; k < kCosts; ++k) {
      const double share = total[k] / static_cast<double>(call.num_parts);
      scale_[k] = share > 0 ? kWeights[k] / (share * share) : 0;
    }
    while (ring_ < call.num_parts) ring_ *= 2;
  }
  void add(int64_t part, const Costs& costs, int64_t sign) {
    for (int k = 0; k < kCosts; ++k) of_part_[part].of[k] += sign * costs.of[k];
  }
  // How much the sum of squares of the parts' relative costs would rise, halved.
  double rise(int64_t part, const Costs& costs) const {
    double sum = 0;
    for (int k = 0; k < kCosts; ++k) {
      const auto more = static_cast<double>(costs.of[k]);
      sum += more * (static_cast<double>(of_part_[part].of[k]) + more / 2) * scale_[k];
    }
    return sum;
  }
  // The clone that is the best root; for a node without clones any part.
  int64_t best(int64_t node, const Costs& costs, bool anywhere) const {
    const uint64_t hash = row_key(call_.key, static_cast<uint64_t>(node));
    const auto start = static_cast<int64_t>(hash & static_cast<uint64_t>(ring_ - 1));
    int64_t best = -1, best_place = 0;
    double least = 0;
    const auto consider = [&](int64_t part) {
      const double here = rise(part, costs);
      const int64_t place = (part - start) & (ring_ - 1);
      if (best < 0 || here < least || (here == least && place < best_place)) {
        best = part, best_place = place, least = here;
      }
    };
    for (int64_t w = 0; w < call_.clones.words; ++w) {
      if (anywhere) {
        for (int64_t part = w * 64; part < std::min(w * 64 + 64, call_.num_parts); ++part) {
          consider(part);
        }
        continue;
      }
      for (uint64_t bits = call_.clones.row(node)[w]; bits != 0; bits &= bits - 1) {
        consider(w * 64 + __builtin_ctzll(bits));
      }
    }
    return best;
  }

 private:
  const RootChoice& call_;
  std::vector<Costs> of_part_;
  double scale_[kCosts];
  int64_t ring_ = 1;
};

}  // namespace

Tensor choose_roots(Tensor clones, OptionalTensor train, int64_t num_parts, int64_t sweeps,
                    int64_t key) {
  const CloneTable table = clone_table(clones, num_parts);
  const bool* mask = nullptr;
  if (train) {
    mask = flat<bool>(*train, ScalarType::Bool, "train");
    check(train->size(0) == table.num_nodes, "train must have one element per node (",
          table.num_nodes, "), got ", train->size(0));
  }
  check(sweeps >= 1 && sweeps <= 100, "sweeps must lie in [1, 100], got ", sweeps);
  const uint64_t outside = num_parts % 64 == 0 ? 0 : ~uint64_t{0} << (num_parts % 64);
  for (int64_t node = 0; node < table.num_nodes; ++node) {
    check_index((table.row(node)[table.words - 1] & outside) == 0, "clones must lie in [0, ",
                num_parts, "), node ", node, " has others");
  }
  const RootChoice call{table, mask, num_parts, static_cast<uint64_t>(key)};
  const Tensor root =
      torch::stable::new_empty(clones, {table.num_nodes}, ScalarType::Int);
  auto* out = static_cast<int32_t*>(root.data_ptr());
  const std::vector<int64_t> order = nodes_by_choice(call);
  RootCosts state(call);
  for (int64_t sweep = 0; sweep < sweeps; ++sweep) {
    for (const int64_t node : order) {
      const int64_t count = call.num_clones(node);
      if (sweep > 0 && count == 1) continue;
      const Costs costs = call.costs(node, std::max<int64_t>(1, count));
      if (sweep > 0) state.add(out[node], costs, -1);
      const int64_t part = state.best(node, costs, count == 0);
      state.add(part, costs, 1);
      out[node] = static_cast<int32_t>(part);
      if (count == 0) table.add(node, part);
    }
  }
  return root;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "choose_roots(Tensor(a!) clones, Tensor? train, int num_parts, int sweeps, int key) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("choose_roots", TORCH_BOX(&gnn_dist::choose_roots));
}
