// Clustering of a stream of edges: what streaming partitioners do where rows cannot be had.
#include <algorithm>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "draws.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kNodeAhead = 48;     // edges between asking for an end's cluster and using it
constexpr int64_t kClusterAhead = 24;  // the same for the cluster's load
constexpr int64_t kNone = -1;
constexpr int64_t kMostCount = 1024;   // pairs are told apart by their counts up to this

template <class T>
T* table(const Tensor& tensor, ScalarType dtype, int64_t rows, int64_t columns, const char* name) {
  check_dtype(tensor, dtype, name);
  check(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns &&
            tensor.is_contiguous(),
        name, " must be contiguous of shape (", rows, ", ", columns, ")");
  return static_cast<T*>(tensor.data_ptr());
}

template <class T>
T* vector_of(const Tensor& tensor, ScalarType dtype, int64_t size, const char* name) {
  auto* data = const_cast<T*>(flat<T>(tensor, dtype, name));
  check(tensor.size(0) == size, name, " must have ", size, " elements, got ", tensor.size(0));
  return data;
}

int64_t check_node(int64_t v, int64_t num_nodes) {
  check_index(v >= 0 && v < num_nodes, "ids must lie in [0, ", num_nodes, "), got ", v);
  return v;
}

// Ends of edges, int32 or int64.
template <class Index>
struct Edges {
  const Index *src, *dst;
  int64_t size, num_nodes;

  std::pair<int64_t, int64_t> operator[](int64_t e) const {
    return {check_node(src[e], num_nodes), check_node(dst[e], num_nodes)};
  }
};

// Calls f with the edges' view.
template <class F>
void with_edges(const Tensor& src, const Tensor& dst, int64_t num_nodes, const F& f) {
  check(src.dim() == 1 && dst.dim() == 1 && src.size(0) == dst.size(0),
        "src and dst must be one-dimensional and equally long");
  check(src.scalar_type() == dst.scalar_type(), "src and dst must have one dtype");
  const int64_t size = src.size(0);
  if (src.scalar_type() == ScalarType::Long) {
    f(Edges<int64_t>{flat<int64_t>(src, ScalarType::Long, "src"),
                     flat<int64_t>(dst, ScalarType::Long, "dst"), size, num_nodes});
  } else {
    f(Edges<int32_t>{flat<int32_t>(src, ScalarType::Int, "src"),
                     flat<int32_t>(dst, ScalarType::Int, "dst"), size, num_nodes});
  }
}

// Calls f(u, v) for each edge. Before that it calls ask_for_nodes(u, v), to ask for the state of
// ends, and then ask_for_clusters(u, v), which may read that state to ask for what it points to.
template <class Index, class Nodes, class Pointed, class F>
void for_each_edge(const Edges<Index>& edges, const Nodes& ask_for_nodes,
                   const Pointed& ask_for_clusters, const F& f) {
  for (int64_t e = 0; e < edges.size; ++e) {
    if (e + kNodeAhead < edges.size) {
      const auto [u, v] = edges[e + kNodeAhead];
      ask_for_nodes(u, v);
    }
    if (e + kClusterAhead < edges.size) {
      const auto [u, v] = edges[e + kClusterAhead];
      ask_for_clusters(u, v);
    }
    const auto [u, v] = edges[e];
    f(u, v);
  }
}

struct Clusters {
  int32_t* of;          // (N,)
  int64_t* load;        // (N, L), of each cluster; column 0 is its volume
  const int64_t* node;  // (N, L), what each node adds to it
  const int64_t* limit;  // (L,)
  int64_t num_nodes, columns;

  bool takes(int64_t to, int64_t v) const {
    for (int64_t k = 0; k < columns; ++k) {
      if (load[to * columns + k] + node[v * columns + k] > limit[k]) return false;
    }
    return true;
  }
  void move(int64_t v, int64_t from, int64_t to) const {
    for (int64_t k = 0; k < columns; ++k) {
      load[from * columns + k] -= node[v * columns + k];
      load[to * columns + k] += node[v * columns + k];
    }
    of[v] = static_cast<int32_t>(to);
  }
  int64_t check_cluster(int64_t c) const {
    check_index(c >= 0 && c < num_nodes, "clusters must lie in [0, ", num_nodes, "), got ", c);
    return c;
  }
  // The end in the cluster of lower volume joins the other's, if that has room.
  void join(int64_t u, int64_t v) const {
    const int64_t a = check_cluster(of[u]), b = check_cluster(of[v]);
    if (a == b) return;
    if (load[a * columns] <= load[b * columns]) {
      if (takes(b, u)) move(u, a, b);
    } else if (takes(a, v)) {
      move(v, b, a);
    }
  }
};

// Clusters joined into larger ones, the smallest first.
class Merger {
 public:
  Merger(const Clusters& clusters, const int32_t* richest)
      : clusters_(clusters), parent_(clusters.num_nodes), best_(clusters.num_nodes, kNone) {
    for (int64_t c = 0; c < clusters.num_nodes; ++c) parent_[c] = static_cast<int32_t>(c);
    for (int64_t v = 0; v < clusters.num_nodes; ++v) {
      const int64_t c = clusters.check_cluster(clusters.of[v]), u = richest[v];
      if (u == kNone) continue;
      check_node(u, clusters.num_nodes);
      if (clusters.check_cluster(clusters.of[u]) != c) best_[c] = richer(best_[c], u);
    }
  }
  void run() {
    for (int64_t c = 0; c < clusters_.num_nodes; ++c) push(c);
    while (!heap_.empty()) {
      const auto [size, c] = heap_.top();
      heap_.pop();
      if (root(c) != c || best_[c] == kNone || size != fullness(c)) continue;
      const int64_t to = root(clusters_.of[best_[c]]);
      if (to != c && fits(c, to)) unite(c, to);
    }
    for (int64_t v = 0; v < clusters_.num_nodes; ++v) {
      clusters_.of[v] = static_cast<int32_t>(root(clusters_.of[v]));
    }
  }

 private:
  using Entry = std::pair<double, int64_t>;

  // The node of higher degree; of equals the lower one.
  int32_t richer(int64_t u, int64_t v) const {
    if (u == kNone || v == kNone) return static_cast<int32_t>(std::max(u, v));
    const int64_t more = clusters_.node[u * clusters_.columns] -
                         clusters_.node[v * clusters_.columns];
    return static_cast<int32_t>(more > 0 || (more == 0 && u < v) ? u : v);
  }
  int64_t root(int64_t c) {
    while (parent_[c] != c) c = parent_[c] = parent_[parent_[c]];
    return c;
  }
  double fullness(int64_t c) const {
    double most = 0;
    for (int64_t k = 0; k < clusters_.columns; ++k) {
      const auto load = static_cast<double>(clusters_.load[c * clusters_.columns + k]);
      most = std::max(most, load / static_cast<double>(clusters_.limit[k]));
    }
    return most;
  }
  void push(int64_t c) {
    if (best_[c] != kNone) heap_.push({fullness(c), c});
  }
  bool fits(int64_t a, int64_t b) const {
    const int64_t columns = clusters_.columns;
    for (int64_t k = 0; k < columns; ++k) {
      if (clusters_.load[a * columns + k] + clusters_.load[b * columns + k] > clusters_.limit[k]) {
        return false;
      }
    }
    return true;
  }
  void unite(int64_t c, int64_t to) {
    parent_[c] = static_cast<int32_t>(to);
    for (int64_t k = 0; k < clusters_.columns; ++k) {
      int64_t& load = clusters_.load[c * clusters_.columns + k];
      clusters_.load[to * clusters_.columns + k] += load;
      load = 0;
    }
    best_[to] = richer(outside(best_[c], to), outside(best_[to], to));
    push(to);
  }
  int64_t outside(int64_t u, int64_t c) {
    return u != kNone && root(clusters_.of[u]) == c ? kNone : u;
  }

  Clusters clusters_;
  std::vector<int32_t> parent_, best_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
};

// How many edges pairs of clusters share, for as many pairs as there is room for.
class Pairs {
 public:
  Pairs(int64_t* keys, int32_t* counts, int64_t* used, int64_t size)
      : keys_(keys), counts_(counts), used_(used), mask_(size - 1) {}

  int64_t home(int64_t key) const { return static_cast<int64_t>(hash(key)) & mask_; }
  void ask_for(int64_t key) const {
    __builtin_prefetch(keys_ + home(key), 1);
    __builtin_prefetch(counts_ + home(key), 1);
  }
  void add(int64_t key, int32_t count) {
    int64_t slot = home(key);
    while (keys_[slot] != key && keys_[slot] != kNone) slot = (slot + 1) & mask_;
    if (keys_[slot] == kNone) {
      if (*used_ >= (mask_ + 1) / 4 * 3) {
        shrink();
        return add(key, count);
      }
      keys_[slot] = key;
      counts_[slot] = 0;
      ++*used_;
    }
    counts_[slot] += counts_[slot] <= INT32_MAX - count ? count : 0;
  }

 private:
  static uint64_t hash(int64_t key) { return mix(static_cast<uint64_t>(key) + kGolden); }

  static int64_t class_of(int32_t count) { return std::min<int64_t>(count, kMostCount); }

  // Keeps the heavier ones, half of the table; among equals, those of the lowest hashes.
  void shrink() {
    std::vector<int64_t> with_count(kMostCount + 1);
    for (int64_t slot = 0; slot <= mask_; ++slot) {
      if (keys_[slot] != kNone) ++with_count[class_of(counts_[slot])];
    }
    int64_t last = kMostCount, room = (mask_ + 1) / 2;
    while (last > 1 && with_count[last] <= room) room -= with_count[last--];
    const uint64_t bound = lowest_hashes(last, std::min(room, with_count[last]));
    std::vector<std::pair<int64_t, int32_t>> kept;
    kept.reserve((mask_ + 1) / 2);
    for (int64_t slot = 0; slot <= mask_; ++slot) {
      if (keys_[slot] == kNone) continue;
      const int64_t count = class_of(counts_[slot]);
      const bool keep = count > last || (count == last && hash(keys_[slot]) < bound);
      if (keep) kept.push_back({keys_[slot], counts_[slot]});
      keys_[slot] = kNone;
    }
    *used_ = 0;
    for (const auto& [key, count] : kept) add(key, count);
  }
  // What bounds the lowest hashes of pairs of a count, as many as there is room for.
  uint64_t lowest_hashes(int64_t count, int64_t room) const {
    std::vector<uint64_t> hashes;
    for (int64_t slot = 0; slot <= mask_; ++slot) {
      if (keys_[slot] != kNone && class_of(counts_[slot]) == count) {
        hashes.push_back(hash(keys_[slot]));
      }
    }
    if (room == static_cast<int64_t>(hashes.size())) return UINT64_MAX;
    std::nth_element(hashes.begin(), hashes.begin() + room, hashes.end());
    return hashes[room];
  }

  int64_t* keys_;
  int32_t* counts_;
  int64_t* used_;
  int64_t mask_;
};

}  // namespace

void count_ids(Tensor counts, Tensor ids) {
  check_dtype(counts, ScalarType::Long, "counts");
  auto* count = const_cast<int64_t*>(flat<int64_t>(counts, ScalarType::Long, "counts"));
  with_edges(ids, ids, counts.size(0), [&](const auto& edges) {
    for (int64_t e = 0; e < edges.size; ++e) {
      if (e + kNodeAhead < edges.size) __builtin_prefetch(count + edges[e + kNodeAhead].first, 1);
      ++count[edges[e].first];
    }
  });
}

Clusters clusters_view(const Tensor& cluster, const Tensor& cluster_load, const Tensor& node_load,
                       const Tensor& limit) {
  check(node_load.dim() == 2 && node_load.size(1) > 0,
        "node_load must have two dimensions and at least one column");
  const int64_t rows = node_load.size(0), columns = node_load.size(1);
  check(rows < INT32_MAX, "nodes must number less than 2^31, got ", rows);
  return {vector_of<int32_t>(cluster, ScalarType::Int, rows, "cluster"),
          table<int64_t>(cluster_load, ScalarType::Long, rows, columns, "cluster_load"),
          table<int64_t>(node_load, ScalarType::Long, rows, columns, "node_load"),
          vector_of<int64_t>(limit, ScalarType::Long, columns, "limit"),
          rows,
          columns};
}

void cluster_edges(Tensor cluster, Tensor cluster_load, OptionalTensor richest, Tensor src,
                   Tensor dst, Tensor node_load, Tensor limit) {
  const Clusters clusters = clusters_view(cluster, cluster_load, node_load, limit);
  int32_t* rich = nullptr;
  if (richest.has_value()) {
    rich = vector_of<int32_t>(*richest, ScalarType::Int, clusters.num_nodes, "richest");
  }
  const int64_t columns = clusters.columns;
  const auto degree = [&](int64_t v) { return clusters.node[v * columns]; };
  const auto is_node = [&](int64_t i) { return i >= 0 && i < clusters.num_nodes; };
  const auto ask_for_nodes = [&](int64_t u, int64_t v) {
    for (const int64_t i : {u, v}) {
      __builtin_prefetch(clusters.of + i, 1);
      __builtin_prefetch(clusters.node + i * columns);
      __builtin_prefetch(clusters.node + (i + 1) * columns - 1);
    }
    if (rich != nullptr) __builtin_prefetch(rich + v, 1);
  };
  const auto ask_for_clusters = [&](int64_t u, int64_t v) {
    for (const int64_t c : {clusters.of[u], clusters.of[v]}) {
      if (!is_node(c)) continue;  // refused when its turn comes
      __builtin_prefetch(clusters.load + c * columns, 1);
      __builtin_prefetch(clusters.load + (c + 1) * columns - 1, 1);
    }
    if (rich != nullptr && is_node(rich[v])) __builtin_prefetch(clusters.node + rich[v] * columns);
  };
  with_edges(src, dst, clusters.num_nodes, [&](const auto& edges) {
    for_each_edge(edges, ask_for_nodes, ask_for_clusters, [&](int64_t u, int64_t v) {
      if (u == v) return;
      clusters.join(u, v);
      if (rich == nullptr) return;
      check_index(rich[v] >= kNone && rich[v] < clusters.num_nodes, "richest must lie in [-1, ",
                  clusters.num_nodes, "), got ", rich[v]);
      if (rich[v] == kNone || degree(u) > degree(rich[v])) rich[v] = static_cast<int32_t>(u);
    });
  });
}

void merge_clusters(Tensor cluster, Tensor cluster_load, Tensor richest, Tensor node_load,
                    Tensor limit) {
  const Clusters clusters = clusters_view(cluster, cluster_load, node_load, limit);
  for (int64_t k = 0; k < clusters.columns; ++k) {
    check(clusters.limit[k] > 0, "limit must be positive, got ", clusters.limit[k]);
  }
  Merger(clusters, vector_of<int32_t>(richest, ScalarType::Int, clusters.num_nodes, "richest"))
      .run();
}

void count_pairs(Tensor keys, Tensor counts, Tensor used, Tensor src, Tensor dst, Tensor cluster,
                 int64_t num_clusters) {
  check(keys.dim() == 1, "keys must be one-dimensional");
  const int64_t size = keys.size(0);
  check(size >= 8 && (size & (size - 1)) == 0, "keys must number a power of two from 8, got ",
        size);
  check(num_clusters > 0 && num_clusters <= INT32_MAX, "num_clusters must lie in [1, 2^31), got ",
        num_clusters);
  const auto* of = flat<int32_t>(cluster, ScalarType::Int, "cluster");
  const int64_t num_nodes = cluster.size(0);
  const auto check_cluster = [&](int64_t c) {
    check_index(c >= 0 && c < num_clusters, "clusters must lie in [0, ", num_clusters, "), got ",
                c);
  };
  auto* filled = vector_of<int64_t>(used, ScalarType::Long, 1, "used");
  check(*filled >= 0 && *filled < size, "used must lie in [0, ", size, "), got ", *filled);
  Pairs pairs(vector_of<int64_t>(keys, ScalarType::Long, size, "keys"),
              vector_of<int32_t>(counts, ScalarType::Int, size, "counts"), filled, size);
  const auto key = [&](int64_t a, int64_t b) {
    return std::min(a, b) * num_clusters + std::max(a, b);
  };
  const auto ask_for_nodes = [&](int64_t u, int64_t v) {
    __builtin_prefetch(of + u);
    __builtin_prefetch(of + v);
  };
  const auto ask_for_pair = [&](int64_t u, int64_t v) {
    if (of[u] != of[v]) pairs.ask_for(key(of[u], of[v]));  // any key has a home
  };
  with_edges(src, dst, num_nodes, [&](const auto& edges) {
    for_each_edge(edges, ask_for_nodes, ask_for_pair, [&](int64_t u, int64_t v) {
      check_cluster(of[u]);
      check_cluster(of[v]);
      if (of[u] != of[v]) pairs.add(key(of[u], of[v]), 1);
    });
  });
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("count_ids(Tensor(a!) counts, Tensor ids) -> ()");
  m.def(
      "cluster_edges(Tensor(a!) cluster, Tensor(b!) cluster_load, Tensor(c!)? richest, Tensor src, "
      "Tensor dst, Tensor node_load, Tensor limit) -> ()");
  m.def(
      "merge_clusters(Tensor(a!) cluster, Tensor(b!) cluster_load, Tensor richest, "
      "Tensor node_load, Tensor limit) -> ()");
  m.def(
      "count_pairs(Tensor(a!) keys, Tensor(b!) counts, Tensor(c!) used, Tensor src, Tensor dst, "
      "Tensor cluster, int num_clusters) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("count_ids", TORCH_BOX(&gnn_dist::count_ids));
  m.impl("cluster_edges", TORCH_BOX(&gnn_dist::cluster_edges));
  m.impl("merge_clusters", TORCH_BOX(&gnn_dist::merge_clusters));
  m.impl("count_pairs", TORCH_BOX(&gnn_dist::count_pairs));
}
