// Two-phase edge partitioning: edges near the clusters of their ends.
#include "part_sets.h"

namespace gnn_dist {

namespace {

// What is known of a node's cluster: its part, and how many edge ends it has.
struct Home {
  int64_t volume;
  int32_t part, degree;  // the node's own degree
};

struct Homes {
  const Home* of;
  int64_t num_parts;

  int64_t part(int64_t node) const {
    const int64_t home = of[node].part;
    if (home < 0 || home >= num_parts) refuse(home);
    return home;
  }

 private:
  [[noreturn, gnu::cold]] void refuse(int64_t home) const {
    throw std::out_of_range(text("home must lie in [0, ", num_parts, "), got ", home));
  }
};

// How well a part suits an edge: clones that are there already, and the weight of clusters at home.
double home_score(const EdgeStreamView& view, const Homes& homes, int64_t u, int64_t v,
                  int64_t part) {
  const double degree_u = homes.of[u].degree, degree_v = homes.of[v].degree;
  const double degrees = std::max(1.0, degree_u + degree_v);
  const auto volume_u = static_cast<double>(homes.of[u].volume);
  const auto volume_v = static_cast<double>(homes.of[v].volume);
  const double volumes = std::max(1.0, volume_u + volume_v);
  const auto has = [&](int64_t node) {
    return view.clones.row(node)[part / 64] >> (part % 64) & 1;
  };
  double score = 0;
  if (has(u)) score += 1 + (1 - degree_u / degrees);
  if (has(v)) score += 1 + (1 - degree_v / degrees);
  if (homes.part(u) == part) score += volume_u / volumes;
  if (homes.part(v) == part) score += volume_v / volumes;
  return score;
}

template <class Loads>
int64_t two_phase_part(const EdgeStreamView& view, const Homes& homes, const Loads& loads,
                       int64_t i, int64_t u, int64_t v) {
  const int64_t at_u = homes.part(u), at_v = homes.part(v);
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

void two_phase_edges(Tensor parts, Tensor clones, Tensor loads, Tensor src, Tensor dst,
                     Tensor homes, int64_t limit, bool rest, int64_t key, int64_t first) {
  const EdgeStreamView view = edge_stream_view(parts, clones, loads, limit, key, first);
  const int64_t num_nodes = view.clones.num_nodes;
  check_dtype(homes, ScalarType::Long, "homes");
  check(homes.dim() == 2 && homes.size(0) == num_nodes && homes.size(1) == 2 &&
            homes.is_contiguous(),
        "homes must be contiguous of shape (", num_nodes, ", 2)");
  const Homes home_of{static_cast<const Home*>(homes.data_ptr()), view.num_parts};
  with_edges(src, dst, num_nodes, [&](const auto& edges) {
    check_parts(parts, edges.size);
    check_room(view, rest ? std::count(view.parts, view.parts + edges.size, -1) : 0);
    with_words(view.clones.words, [&](auto words) {
      PartLoads<decltype(words)::value> open(view.loads, view.num_parts, view.limit);
      for (int64_t i = 0; i < edges.size; ++i) {
        const int64_t ahead = i + kEdgesAhead;
        if (ahead < edges.size && !(rest && view.parts[ahead] >= 0)) {
          for (const int64_t node : {int64_t{edges.src[ahead]}, int64_t{edges.dst[ahead]}}) {
            view.prefetch(node);
            __builtin_prefetch(home_of.of + node);
          }
        }
        const int64_t u = edges.src[i], v = edges.dst[i];
        int64_t part = -1;
        if (rest) {
          if (view.parts[i] >= 0) continue;
          part = two_phase_part(view, home_of, open, i, u, v);
        } else if (part = home_of.part(u); part != home_of.part(v) || !open.is_open(part)) {
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
      "two_phase_edges(Tensor(a!) parts, Tensor(b!) clones, Tensor(c!) loads, Tensor src, "
      "Tensor dst, Tensor homes, int limit, bool rest, int key, int first) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("two_phase_edges", TORCH_BOX(&gnn_dist::two_phase_edges));
}
