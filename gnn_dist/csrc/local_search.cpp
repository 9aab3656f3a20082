// Local search on the connectivity of a hypergraph: the sum over nets of their weight times the
// number of parts that hold a pin of them.
//
// Source: "Scalable Shared-Memory Hypergraph Partitioning" (Gottesbueren et al., arXiv 2010.10272):
// searches that start from single boundary nodes, a table of gains, and a rebalancer.
#include <numeric>
#include <queue>

#include "draws.h"
#include "hypergraph.h"

namespace gnn_dist {

namespace {

struct Candidate {
  int64_t gain;
  uint32_t tie;  // pseudorandom, so that equal gains are not taken in the order of ids
  int32_t node;
  int32_t to;

  bool operator<(const Candidate& other) const {
    if (gain != other.gain) return gain < other.gain;
    if (tie != other.tie) return tie < other.tie;
    return node > other.node;
  }
};

// A priority queue that keeps its memory when it is cleared.
struct Heap : std::priority_queue<Candidate> {
  void clear() { c.clear(); }
};

// The pins of a net that one part holds. Of a single one, `pins` is the node itself.
struct Held {
  int32_t count = 0;
  int32_t pins = 0;  // all ids, xor

  void add(int32_t pin) { ++count, pins ^= pin; }
  void remove(int32_t pin) { --count, pins ^= pin; }
};

struct Move {
  int32_t node, from, to;
};

// Searches do not go on along larger nets, whose pins hardly have to do with each other, nor to
// nodes of more nets, which are near everything and dear to move. They only start from these.
constexpr int64_t kMostPins = 300, kMostNets = 1000;

// Searches whose first move loses more than half of what a node has on average, and more than this,
// hardly ever win it back; nor do those that have lost twice as much on their way.
// Few nodes are searched from whatever that loses: each may stand for many.
constexpr int64_t kLeastLoss = 8, kAnyLoss = INT64_MAX / 4, kFew = 2000;

// An assignment, with what each move from it would gain.
class Gains {
 public:
  Gains(const Hypergraph& graph, Loads& loads, int32_t* part)
      : graph_(graph),
        loads_(loads),
        num_parts_(loads.num_parts),
        part_(part),
        held_(graph.num_nets() * num_parts_),
        reach_(graph.num_nodes() * num_parts_),
        alone_(graph.num_nodes()),
        degree_(graph.num_nodes()) {
    for (int64_t net = 0; net < graph.num_nets(); ++net) {
      for (const int32_t pin : graph.pins[net]) held_[net * num_parts_ + part_[pin]].add(pin);
    }
    for (int64_t v = 0; v < graph.num_nodes(); ++v) {
      for (const int32_t net : graph.nets[v]) {
        degree_[v] += graph.net_weight[net];
        for (int64_t p = 0; p < num_parts_; ++p) {
          if (held_[net * num_parts_ + p].count > 0) reach_[v * num_parts_ + p] += graph.net_weight[net];
        }
      }
      alone_[v] = weight_alone(v);
    }
  }

  int64_t connectivity() const {
    int64_t sum = 0;
    for (int64_t net = 0; net < graph_.num_nets(); ++net) {
      for (int64_t p = 0; p < num_parts_; ++p) {
        if (held_[net * num_parts_ + p].count > 0) sum += graph_.net_weight[net];
      }
    }
    return sum;
  }
  int32_t part(int64_t v) const { return part_[v]; }
  // What nodes weigh in nets, on average.
  int64_t mean_degree() const {
    const int64_t sum = std::accumulate(degree_.begin(), degree_.end(), int64_t{0});
    return sum / std::max<int64_t>(1, graph_.num_nodes());
  }
  const Hypergraph& graph() const { return graph_; }
  Loads& loads() const { return loads_; }
  // Nets of v that the part it leaves is rid of, less those that are new to part `to`.
  int64_t gain(int64_t v, int64_t to) const {
    return alone_[v] - degree_[v] + reach_[v * num_parts_ + to];
  }
  bool on_boundary(int64_t v) const {
    const int64_t* reach = &reach_[v * num_parts_];
    for (int64_t p = 0; p < num_parts_; ++p) {
      if (p != part_[v] && reach[p] > 0) return true;
    }
    return false;
  }
  // The best part for v among those that keep within their limits; -1 in `to` if there is none.
  Candidate best(int32_t v, uint32_t tie) const {
    Candidate best{INT64_MIN, tie, v, -1};
    const int32_t from = part_[v];
    if (loads_.size(from) < 2) return best;
    const int64_t* reach = &reach_[v * num_parts_];
    int64_t most = -1;
    for (int32_t p = 0; p < num_parts_; ++p) {
      const bool better = reach[p] > most;
      if (p == from || !better || !loads_.fits(v, p)) continue;
      most = reach[p];
      best.to = p;
    }
    if (best.to >= 0) best.gain = gain(v, best.to);
    return best;
  }
  // Moves v and calls near(pin) for the other pins of nets of which the gain of some move changed.
  template <class F>
  void move(int32_t v, int32_t to, const F& near) {
    const int32_t from = part_[v];
    part_[v] = to;
    loads_.move(v, from, to);
    int64_t alone = 0;
    for (const int32_t net : graph_.nets[v]) {
      const int64_t w = graph_.net_weight[net];
      Held& old = held_[net * num_parts_ + from];
      Held& now = held_[net * num_parts_ + to];
      old.remove(v);
      const bool tell = graph_.pins.size(net) <= kMostPins;
      if (old.count == 1) alone_[old.pins] += w;
      if (now.count == 1) alone_[now.pins] -= w;
      now.add(v);
      if (now.count == 1) alone += w;
      if (tell && (old.count <= 1 || now.count <= 2)) {
        for (const int32_t pin : graph_.pins[net]) {
          if (pin != v) near(pin);
        }
      }
      if (old.count > 0 && now.count > 1) continue;
      for (const int32_t pin : graph_.pins[net]) {
        int64_t* reach = &reach_[pin * num_parts_];
        if (old.count == 0) reach[from] -= w;
        if (now.count == 1) reach[to] += w;
      }
    }
    alone_[v] = alone;
  }

 private:
  int64_t weight_alone(int64_t v) const {
    int64_t sum = 0;
    for (const int32_t net : graph_.nets[v]) {
      if (held_[net * num_parts_ + part_[v]].count == 1) sum += graph_.net_weight[net];
    }
    return sum;
  }

  const Hypergraph& graph_;
  Loads& loads_;
  const int64_t num_parts_;
  int32_t* part_;
  std::vector<Held> held_;               // of each net by each part
  std::vector<int64_t> reach_;           // weight of the nets of each node that each part touches
  std::vector<int64_t> alone_, degree_;  // weight of those it alone keeps in its part; of all
};

uint32_t tie_of(uint64_t key, int32_t v) {
  return static_cast<uint32_t>(word(row_key(key, static_cast<uint64_t>(v)), 0));
}

// Searches from one node: moves the best node near it, again and again, also where that loses, and
// goes back to the best it has seen.
class Searches {
 public:
  Searches(Gains& gains, int64_t patience)
      : gains_(gains),
        patience_(patience),
        most_loss_(gains.graph().num_nodes() <= kFew
                       ? kAnyLoss
                       : std::max(kLeastLoss, gains.mean_degree() / 2)),
        state_(gains.graph().num_nodes()),
        is_fresh_(gains.graph().num_nodes(), 1),
        tie_(gains.graph().num_nodes()),
        seen_(gains.graph().num_nodes(), -1) {}

  // Searches once from every boundary node near which something moved since it was last searched
  // from; returns what all searches gained.
  int64_t round(uint64_t key) {
    std::fill(state_.begin(), state_.end(), kFree);
    std::vector<std::pair<uint32_t, int32_t>> seeds;
    for (int32_t v = 0; v < gains_.graph().num_nodes(); ++v) {
      tie_[v] = tie_of(key, v);
      if (is_fresh_[v] && gains_.on_boundary(v)) seeds.push_back({tie_[v], v});
      is_fresh_[v] = 0;
    }
    std::sort(seeds.begin(), seeds.end());
    int64_t sum = 0;
    for (const auto& [tie, v] : seeds) {
      if (state_[v] == kFree && gains_.best(v, tie).gain >= -most_loss_) sum += search(v);
    }
    return sum;
  }

 private:
  enum State : uint8_t { kFree, kTried, kMoved };

  int64_t search(int32_t seed) {
    heap_.clear();
    moves_.clear();
    push(seed);
    int64_t sum = 0, best = 0, since = 0;
    size_t kept = 0;
    while (!heap_.empty() && since < patience_ && sum >= best - 2 * most_loss_) {
      const Candidate top = heap_.top();
      heap_.pop();
      if (state_[top.node] == kMoved) continue;
      const Candidate now = gains_.best(top.node, top.tie);
      if (now.to < 0) continue;
      if (now.gain != top.gain || now.to != top.to) {
        heap_.push(now);
        continue;
      }
      apply(now);
      sum += now.gain;
      ++since;
      if (sum > best) best = sum, since = 0, kept = moves_.size();
    }
    while (moves_.size() > kept) {
      const Move& last = moves_.back();
      gains_.move(last.node, last.from, [](int32_t) {});
      state_[last.node] = kTried;
      moves_.pop_back();
    }
    for (const Move& move : moves_) freshen(move.node);
    return best;
  }
  void apply(const Candidate& move) {
    moves_.push_back({move.node, gains_.part(move.node), move.to});
    state_[move.node] = kMoved;
    near_.clear();
    gains_.move(move.node, move.to, [&](int32_t pin) {
      if (seen_[pin] == move.node || state_[pin] == kMoved) return;
      if (gains_.graph().nets.size(pin) > kMostNets) return;
      seen_[pin] = move.node;
      near_.push_back(pin);
    });
    // Once all gains are what they will be.
    for (const int32_t pin : near_) {
      push(pin);
      seen_[pin] = -1;
    }
  }
  void freshen(int32_t v) {
    for (const int32_t net : gains_.graph().nets[v]) {
      if (gains_.graph().pins.size(net) > kMostPins) continue;
      for (const int32_t pin : gains_.graph().pins[net]) is_fresh_[pin] = 1;
    }
  }
  void push(int32_t v) {
    const Candidate now = gains_.best(v, tie_[v]);
    if (now.to >= 0) heap_.push(now);
  }

  Gains& gains_;
  const int64_t patience_, most_loss_;
  std::vector<State> state_;
  std::vector<char> is_fresh_;
  std::vector<uint32_t> tie_;
  std::vector<int32_t> seen_;
  std::vector<int32_t> near_;
  Heap heap_;
  std::vector<Move> moves_;
};

// Moves nodes out of parts above their limits, those that lose least for what they relieve.
class Rebalance {
 public:
  explicit Rebalance(Gains& gains) : gains_(gains) {}

  void run(uint64_t key) {
    const double before = gains_.loads().total_over();
    pass(key, false);
    if (!gains_.loads().hold()) pass(key, true);
    if (gains_.loads().total_over() <= before) return;
    for (; !moves_.empty(); moves_.pop_back()) {
      gains_.move(moves_.back().node, moves_.back().from, [](int32_t) {});
    }
  }

 private:
  // Level: by squares, and out of any part.
  void pass(uint64_t key, bool level) {
    level_ = level;
    std::priority_queue<Relief> heap;
    for (int32_t v = 0; v < gains_.graph().num_nodes(); ++v) {
      const Relief now = best(v, tie_of(key, v));
      if (now.to >= 0) heap.push(now);
    }
    while (!heap.empty() && !gains_.loads().hold()) {
      const Relief top = heap.top();
      heap.pop();
      const Relief now = best(top.node, top.tie);
      if (now.to < 0) continue;
      if (now.price > top.price) {
        heap.push(now);
        continue;
      }
      moves_.push_back({now.node, gains_.part(now.node), now.to});
      gains_.move(now.node, now.to, [](int32_t) {});
      if (!level) continue;
      const Relief again = best(now.node, now.tie);
      if (again.to >= 0) heap.push(again);
    }
  }

  struct Relief {
    double price;
    uint32_t tie;
    int32_t node;
    int32_t to;

    bool operator<(const Relief& other) const {
      if (price != other.price) return price > other.price;
      if (tie != other.tie) return tie < other.tie;
      return node > other.node;
    }
  };

  Relief best(int32_t v, uint32_t tie) const {
    const Loads& loads = gains_.loads();
    const int32_t from = gains_.part(v);
    Relief best{0, tie, v, -1};
    if (loads.size(from) < 2 || (!level_ && loads.over(from) <= 0)) return best;
    for (int32_t p = 0; p < loads.num_parts; ++p) {
      if (p == from) continue;
      const double relief = level_ ? loads.leveling(v, from, p) : loads.relief(v, from, p);
      if (relief <= kLeast) continue;
      const auto loss = static_cast<double>(-gains_.gain(v, p));
      const double price = loss > 0 ? loss / relief : loss * relief;
      if (best.to < 0 || price < best.price) best.price = price, best.to = p;
    }
    return best;
  }

  // Of rounding, relief may be this much: no cycles of moves that relieve nothing.
  static constexpr double kLeast = 1e-12;

  Gains& gains_;
  bool level_ = false;
  std::vector<Move> moves_;
};

}  // namespace

Tensor local_search(Tensor net_ptr, Tensor nets, Tensor pin_ptr, Tensor pins, Tensor net_weight,
                    Tensor node_weight, Tensor limits, Tensor assignment, int64_t patience,
                    int64_t rounds, int64_t key) {
  const Hypergraph graph = hypergraph(net_ptr, nets, pin_ptr, pins, net_weight);
  Loads loads(node_weight, limits, assignment, graph.num_nodes());
  const Tensor out = torch::stable::clone(assignment);
  Gains gains(graph, loads, static_cast<int32_t*>(out.data_ptr()));
  Rebalance(gains).run(static_cast<uint64_t>(key));
  Searches searches(gains, patience);
  for (int64_t i = 0; i < rounds; ++i) {
    const int64_t won = searches.round(word(static_cast<uint64_t>(key), static_cast<uint64_t>(i)));
    if (won * 1000 <= gains.connectivity()) break;
  }
  return out;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "local_search(Tensor net_ptr, Tensor nets, Tensor pin_ptr, Tensor pins, Tensor net_weight, "
      "Tensor node_weight, Tensor limits, Tensor assignment, int patience, int rounds, int key) "
      "-> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("local_search", TORCH_BOX(&gnn_dist::local_search));
}
