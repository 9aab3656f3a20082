// Two-phase edge partitioning: clusters of nodes that share edges, then edges near their clusters.
#include "part_sets.h"

namespace gnn_dist {

namespace {

// The state of `two_phase_edges`, by node: its cluster's part, and how many edge ends that has.
struct Homes {
  const int32_t* part;
  const int64_t* volume;
};

// How well a part suits an edge: clones that are there already, and the weight of clusters at home.
double home_score(const EdgeStreamView& view, const Homes& homes, int64_t u, int64_t v,
                  int64_t part) {
  const double degree_u = view.degree[u], degree_v = view.degree[v];
  const double degrees = std::max(1.0, degree_u + degree_v);
  const auto volume_u = static_cast<double>(homes.volume[u]);
  const auto volume_v = static_cast<double>(homes.volume[v]);
  const double volumes = std::max(1.0, volume_u + volume_v);
  const auto has = [&](int64_t node) {
    return view.clones.row(node)[part / 64] >> (part % 64) & 1;
  };
  double score = 0;
  if (has(u)) score += 1 + (1 - degree_u / degrees);
  if (has(v)) score += 1 + (1 - degree_v / degrees);
  if (homes.part[u] == part) score += volume_u / volumes;
  if (homes.part[v] == part) score += volume_v / volumes;
  return score;
}

template <class Loads>
int64_t two_phase_part(const EdgeStreamView& view, const Homes& homes, const Loads& loads,
                       int64_t i, int64_t u, int64_t v) {
  const int64_t at_u = homes.part[u], at_v = homes.part[v];
  const bool open_u = loads.is_open(at_u), open_v = loads.is_open(at_v);
  if (open_u && open_v) {
    const double score_u = home_score(view, homes, u, v, at_u);
    const double score_v = home_score(view, homes, u, v, at_v);
    if (score_u != score_v) return score_u > score_v ? at_u : at_v;
    return loads.load(at_u) <= loads.load(at_v) ? at_u : at_v;
  }
  if (open_u || open_v) return open_u ? at_u : at_v;
  // Both are full: a part that has clones of both ends, or of one, or else the least loaded.
  const uint64_t *of_u = view.clones.row(u), *of_v = view.clones.row(v);
  const auto start = static_cast<int64_t>(view.draw(i) & static_cast<uint64_t>(loads.ring() - 1));
  const int64_t both =
      loads.least_of([&](int64_t w) { return of_u[w] & of_v[w] & loads.open(w); }, start);
  if (both >= 0) return both;
  const int64_t one =
      loads.least_of([&](int64_t w) { return (of_u[w] | of_v[w]) & loads.open(w); }, start);
  return one >= 0 ? one : loads.least_of_all(start);
}

}  // namespace

void cluster_ends(Tensor cluster, Tensor volume, Tensor src, Tensor dst, Tensor degree,
                   int64_t limit) {
  auto* of = writable_flat<int64_t>(cluster, ScalarType::Long, "cluster");
  auto* size = writable_flat<int64_t>(volume, ScalarType::Long, "volume");
  const auto* degrees = flat<int32_t>(degree, ScalarType::Int, "degree");
  const int64_t num_nodes = degree.size(0);
  check(cluster.size(0) == num_nodes && volume.size(0) == num_nodes,
        "cluster, volume and degree must be equally long, got ", cluster.size(0), ", ",
        volume.size(0), " and ", num_nodes);
  for (int64_t node = 0; node < num_nodes; ++node) {
    check_index(of[node] >= 0 && of[node] < num_nodes, "cluster must lie in [0, ", num_nodes,
                "), got ", of[node]);
  }
  with_edges(src, dst, num_nodes, [&](const auto& edges) {
    const auto prefetch = [&](int64_t node) {
      __builtin_prefetch(of + node, 1);
      __builtin_prefetch(degrees + node);
    };
    for (int64_t i = 0; i < edges.size; ++i) {
      if (i + 2 * kEdgesAhead < edges.size) {
        prefetch(edges.src[i + 2 * kEdgesAhead]);
        prefetch(edges.dst[i + 2 * kEdgesAhead]);
        __builtin_prefetch(size + of[edges.src[i + kEdgesAhead]], 1);
        __builtin_prefetch(size + of[edges.dst[i + kEdgesAhead]], 1);
      }
      int64_t joins = edges.src[i], stays = edges.dst[i];
      if (of[joins] == of[stays]) continue;
      const auto others = [&](int64_t node) { return size[of[node]] - degrees[node]; };
      if (others(stays) < others(joins)) std::swap(joins, stays);
      int64_t &from = size[of[joins]], &to = size[of[stays]];
      if (from > limit || to > limit - degrees[joins]) continue;
      from -= degrees[joins];
      to += degrees[joins];
      of[joins] = of[stays];
    }
  });
}

void two_phase_edges(Tensor parts, Tensor clones, Tensor loads, Tensor src, Tensor dst,
                     Tensor degree, Tensor home, Tensor volume, int64_t limit, bool rest,
                     int64_t key, int64_t first) {
  const EdgeStreamView view =
      edge_stream_view(parts, clones, loads, degree, limit, key, first);
  const Homes homes{flat<int32_t>(home, ScalarType::Int, "home"),
                    flat<int64_t>(volume, ScalarType::Long, "volume")};
  const int64_t num_nodes = view.clones.num_nodes;
  check(home.size(0) == num_nodes && volume.size(0) == num_nodes,
        "home and volume must have one element per node (", num_nodes, "), got ", home.size(0),
        " and ", volume.size(0));
  for (int64_t node = 0; node < num_nodes; ++node) {
    check_index(homes.part[node] >= 0 && homes.part[node] < view.num_parts,
                "home must lie in [0, ", view.num_parts, "), got ", homes.part[node]);
  }
  with_edges(src, dst, num_nodes, [&](const auto& edges) {
    check_parts(parts, edges.size);
    check_room(view, rest ? std::count(view.parts, view.parts + edges.size, -1) : 0);
    with_words(view.clones.words, [&](auto words) {
      PartLoads<decltype(words)::value> open(view.loads, view.num_parts, view.limit);
      for (int64_t i = 0; i < edges.size; ++i) {
        if (i + kEdgesAhead < edges.size) {
          for (const int64_t node : {int64_t{edges.src[i + kEdgesAhead]},
                                     int64_t{edges.dst[i + kEdgesAhead]}}) {
            view.prefetch(node);
            __builtin_prefetch(homes.part + node);
            if (rest) __builtin_prefetch(homes.volume + node);
          }
        }
        const int64_t u = edges.src[i], v = edges.dst[i];
        int64_t part = homes.part[u];
        if (rest) {
          if (view.parts[i] >= 0) continue;
          part = two_phase_part(view, homes, open, i, u, v);
        } else if (part != homes.part[v] || !open.is_open(part)) {
          view.parts[i] = -1;
          continue;
        }
        open.add(part);
        view.assign(i, u, v, part);
      }
    });
  });
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "cluster_ends(Tensor(a!) cluster, Tensor(b!) volume, Tensor src, Tensor dst, Tensor degree, "
      "int limit) -> ()");
  m.def(
      "two_phase_edges(Tensor(a!) parts, Tensor(b!) clones, Tensor(c!) loads, Tensor src, "
      "Tensor dst, Tensor degree, Tensor home, Tensor volume, int limit, bool rest, int key, "
      "int first) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("cluster_ends", TORCH_BOX(&gnn_dist::cluster_ends));
  m.impl("two_phase_edges", TORCH_BOX(&gnn_dist::two_phase_edges));
}
