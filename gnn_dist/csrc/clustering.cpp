// Clusters of nodes from a stream of edges in any order: what streaming partitioners do where rows
// cannot be had.
//
// All that is known of a node is one record, so that an edge touches four places in memory at most:
// its ends, and the nodes that their clusters are numbered after.
//
//   word   0                  1                   2 ... L + 1   L + 2 ... 2 L + 1
//          cluster, richest   richest's degree    own loads     loads of the cluster of its number
#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "edges.h"

namespace gnn_dist {

namespace {

constexpr int64_t kNodeAhead = 48;     // edges between asking for an end's record and using it
constexpr int64_t kClusterAhead = 24;  // the same for its cluster's
constexpr int64_t kHeadWords = 2;
constexpr int64_t kNone = -1;

// Loads are numbers in L columns; column 0 is the volume, the sum of degrees.
class Nodes {
 public:
  struct Head {
    int32_t cluster, richest;
    int64_t richest_degree;  // -1 without a richest
  };

  Nodes(const Tensor& nodes, const Tensor& limit)
      : limit_(flat<int64_t>(limit, ScalarType::Long, "limit")), columns_(limit.size(0)),
        width_(kHeadWords + 2 * columns_) {
    check_dtype(nodes, ScalarType::Long, "nodes");
    check(columns_ > 0, "limit must have at least one element");
    check(nodes.dim() == 2 && nodes.size(1) == width_ && nodes.is_contiguous(),
          "nodes must be contiguous of shape (N, ", width_, ")");
    size_ = nodes.size(0);
    check(size_ < INT32_MAX, "nodes must number less than 2^31, got ", size_);
    words_ = static_cast<int64_t*>(nodes.data_ptr());
  }

  int64_t size() const { return size_; }
  int64_t columns() const { return columns_; }
  int64_t limit(int64_t column) const { return limit_[column]; }
  Head& head(int64_t v) const { return *reinterpret_cast<Head*>(words_ + v * width_); }
  int64_t* own(int64_t v) const { return words_ + v * width_ + kHeadWords; }
  int64_t* load(int64_t c) const { return own(c) + columns_; }
  int64_t degree(int64_t v) const { return own(v)[0]; }

  int64_t cluster(int64_t v) const { return inside(head(v).cluster, "clusters"); }
  // The source of highest degree, -1 for none.
  int64_t richest(int64_t v) const {
    const int64_t u = head(v).richest;
    return u == kNone ? u : inside(u, "richest");
  }
  void ask_for(int64_t v) const {
    __builtin_prefetch(words_ + v * width_, 1);
    if (width_ > 8) __builtin_prefetch(words_ + (v + 1) * width_ - 1, 1);
  }
  bool fits(const int64_t* load, const int64_t* more) const {
    bool all = true;
    for (int64_t k = 0; k < columns_; ++k) all &= load[k] + more[k] <= limit_[k];
    return all;
  }

 private:
  int64_t inside(int64_t i, const char* name) const {
    if (i < 0 || i >= size_) refuse(i, name);
    return i;
  }
  [[noreturn, gnu::cold]] void refuse(int64_t i, const char* name) const {
    throw std::out_of_range(text(name, " must lie in [0, ", size_, "), got ", i));
  }

  const int64_t* limit_;
  int64_t columns_, width_, size_;
  int64_t* words_;
};

void move(const Nodes& nodes, int64_t v, int64_t from, int64_t to) {
  const int64_t* own = nodes.own(v);
  int64_t *left = nodes.load(from), *joined = nodes.load(to);
  if (!nodes.fits(joined, own)) return;
  for (int64_t k = 0; k < nodes.columns(); ++k) {
    left[k] -= own[k];
    joined[k] += own[k];
  }
  nodes.head(v).cluster = static_cast<int32_t>(to);
}

// The end in the cluster of lower volume joins the other's, if that has room.
template <bool kBesides>
void join(const Nodes& nodes, int64_t u, int64_t v) {
  const int64_t a = nodes.cluster(u), b = nodes.cluster(v);
  if (a == b) return;
  const int64_t at_u = nodes.load(a)[0] - (kBesides ? nodes.degree(u) : 0);
  const int64_t at_v = nodes.load(b)[0] - (kBesides ? nodes.degree(v) : 0);
  if (at_u <= at_v) {
    move(nodes, u, a, b);
  } else {
    move(nodes, v, b, a);
  }
}

void meet(const Nodes& nodes, int64_t u, int64_t v) {
  Nodes::Head& head = nodes.head(v);
  if (nodes.degree(u) <= head.richest_degree) return;
  head.richest = static_cast<int32_t>(u);
  head.richest_degree = nodes.degree(u);
}

// Clusters joined into larger ones, the smallest first.
class Merger {
 public:
  explicit Merger(const Nodes& nodes)
      : nodes_(nodes), parent_(nodes.size()), best_(nodes.size(), kNone) {
    for (int64_t c = 0; c < nodes.size(); ++c) parent_[c] = static_cast<int32_t>(c);
    for (int64_t v = 0; v < nodes.size(); ++v) {
      const int64_t c = nodes.cluster(v), u = nodes.richest(v);
      if (u != kNone && nodes.cluster(u) != c) best_[c] = richer(best_[c], u);
    }
  }
  void run() {
    for (int64_t c = 0; c < nodes_.size(); ++c) push(c);
    while (!heap_.empty()) {
      const auto [size, c] = heap_.top();
      heap_.pop();
      if (root(c) != c || best_[c] == kNone || size != fullness(c)) continue;
      const int64_t to = root(nodes_.cluster(best_[c]));
      if (to != c && nodes_.fits(nodes_.load(to), nodes_.load(c))) unite(c, to);
    }
    for (int64_t v = 0; v < nodes_.size(); ++v) {
      nodes_.head(v).cluster = static_cast<int32_t>(root(nodes_.cluster(v)));
    }
  }

 private:
  using Entry = std::pair<double, int64_t>;

  // The node of higher degree; of equals the lower one.
  int32_t richer(int64_t u, int64_t v) const {
    if (u == kNone || v == kNone) return static_cast<int32_t>(std::max(u, v));
    const int64_t more = nodes_.degree(u) - nodes_.degree(v);
    return static_cast<int32_t>(more > 0 || (more == 0 && u < v) ? u : v);
  }
  int64_t root(int64_t c) {
    while (parent_[c] != c) c = parent_[c] = parent_[parent_[c]];
    return c;
  }
  double fullness(int64_t c) const {
    double most = 0;
    for (int64_t k = 0; k < nodes_.columns(); ++k) {
      const auto load = static_cast<double>(nodes_.load(c)[k]);
      most = std::max(most, load / static_cast<double>(nodes_.limit(k)));
    }
    return most;
  }
  void push(int64_t c) {
    if (best_[c] != kNone) heap_.push({fullness(c), c});
  }
  void unite(int64_t c, int64_t to) {
    parent_[c] = static_cast<int32_t>(to);
    int64_t *left = nodes_.load(c), *joined = nodes_.load(to);
    for (int64_t k = 0; k < nodes_.columns(); ++k) {
      joined[k] += left[k];
      left[k] = 0;
    }
    best_[to] = richer(outside(best_[c], to), outside(best_[to], to));
    push(to);
  }
  int64_t outside(int64_t u, int64_t c) {
    return u != kNone && root(nodes_.cluster(u)) == c ? kNone : u;
  }

  Nodes nodes_;
  std::vector<int32_t> parent_, best_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
};

}  // namespace

void cluster_edges(Tensor nodes, Tensor src, Tensor dst, Tensor limit, bool richest,
                   bool besides) {
  const Nodes view(nodes, limit);
  const auto run = [&](const auto& edges, auto with_richest, auto with_besides) {
    for (int64_t e = 0; e < edges.size; ++e) {
      if (e + kNodeAhead < edges.size) {
        view.ask_for(edges.src[e + kNodeAhead]);
        view.ask_for(edges.dst[e + kNodeAhead]);
      }
      if (e + kClusterAhead < edges.size) {
        // Refused, if need be, when its turn comes.
        const int64_t a = view.head(edges.src[e + kClusterAhead]).cluster;
        const int64_t b = view.head(edges.dst[e + kClusterAhead]).cluster;
        if (a != b) {
          view.ask_for(a);
          view.ask_for(b);
        }
      }
      const int64_t u = edges.src[e], v = edges.dst[e];
      if (u == v) continue;
      join<decltype(with_besides)::value>(view, u, v);
      if (with_richest) meet(view, u, v);
    }
  };
  with_edges(src, dst, view.size(), [&](const auto& edges) {
    using Yes = std::true_type;
    using No = std::false_type;
    if (besides) {
      richest ? run(edges, Yes{}, Yes{}) : run(edges, No{}, Yes{});
    } else {
      richest ? run(edges, Yes{}, No{}) : run(edges, No{}, No{});
    }
  });
}

void merge_clusters(Tensor nodes, Tensor limit) {
  const Nodes view(nodes, limit);
  for (int64_t k = 0; k < view.columns(); ++k) {
    check(view.limit(k) > 0, "limit must be positive, got ", view.limit(k));
  }
  Merger(view).run();
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "cluster_edges(Tensor(a!) nodes, Tensor src, Tensor dst, Tensor limit, bool richest, "
      "bool besides) -> ()");
  m.def("merge_clusters(Tensor(a!) nodes, Tensor limit) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("cluster_edges", TORCH_BOX(&gnn_dist::cluster_edges));
  m.impl("merge_clusters", TORCH_BOX(&gnn_dist::merge_clusters));
}
