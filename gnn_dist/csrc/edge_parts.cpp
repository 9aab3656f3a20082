// Assigning the edges of a stream to parts, one after the other, by what earlier ones have left.
#include "parallel.h"
#include "part_sets.h"

namespace gnn_dist {

namespace {

constexpr int64_t kEdgesPerTask = 1 << 15;

// Calls choose(loads, i, u, v) -> part for every edge, and enters its answer.
template <class Choose>
void assign_edges(const EdgeStreamView& view, const Tensor& parts, const Tensor& src,
                  const Tensor& dst, const Choose& choose) {
  with_edges(src, dst, view.clones.num_nodes, [&](const auto& edges) {
    check_parts(parts, edges.size);
    check_room(view, edges.size);
    with_words(view.clones.words, [&](auto words) {
      PartLoads<decltype(words)::value> loads(view.loads, view.num_parts, view.limit);
      for (int64_t i = 0; i < edges.size; ++i) {
        if (i + kEdgesAhead < edges.size) {
          view.prefetch(edges.src[i + kEdgesAhead]);
          view.prefetch(edges.dst[i + kEdgesAhead]);
        }
        const int64_t u = edges.src[i], v = edges.dst[i];
        const int64_t part = choose(loads, i, u, v);
        loads.add(part);
        view.assign(i, u, v, part);
      }
    });
  });
}

template <class Loads>
int64_t libra_part(const EdgeStreamView& view, const Loads& loads, int64_t i, int64_t u,
                   int64_t v) {
  const uint64_t *of_u = view.clones.row(u), *of_v = view.clones.row(v);
  const uint64_t draw = view.draw(i);
  const auto start = static_cast<int64_t>(draw & static_cast<uint64_t>(loads.ring() - 1));
  const int64_t common =
      loads.least_of([&](int64_t w) { return of_u[w] & of_v[w] & loads.open(w); }, start);
  if (common >= 0) return common;
  const int64_t at_u =
      loads.least_of([&](int64_t w) { return of_u[w] & loads.open(w); }, start);
  const int64_t at_v =
      loads.least_of([&](int64_t w) { return of_v[w] & loads.open(w); }, start);
  if (at_u < 0 && at_v < 0) return loads.least_of_all(start);
  if (at_u < 0) return at_v;
  if (at_v < 0) return at_u;
  // The end of higher degree gets a clone more: it will have many anyway.
  const int32_t of = view.degree[u], other = view.degree[v];
  return of < other || (of == other && draw >> 63) ? at_u : at_v;
}

template <class Loads>
int64_t hdrf_part(const EdgeStreamView& view, double weight, const Loads& loads, int64_t i,
                  int64_t u, int64_t v) {
  const uint64_t *of_u = view.clones.row(u), *of_v = view.clones.row(v);
  const auto start = static_cast<int64_t>(view.draw(i) & static_cast<uint64_t>(loads.ring() - 1));
  const double degree_u = view.degree[u], degree_v = view.degree[v];
  const double total = std::max(1.0, degree_u + degree_v);
  const double gain_u = 1 + (1 - degree_u / total), gain_v = 1 + (1 - degree_v / total);
  const auto most = static_cast<double>(loads.most());
  const double spread = 1 + (most - static_cast<double>(loads.least()));
  int64_t best = -1;
  double best_score = 0;
  const auto consider = [&](int64_t part) {
    if (part < 0) return;
    const bool has_u = of_u[part / 64] >> (part % 64) & 1;
    const bool has_v = of_v[part / 64] >> (part % 64) & 1;
    const double kept = (has_u ? gain_u : 0) + (has_v ? gain_v : 0);
    const double score =
        kept + weight * ((most - static_cast<double>(loads.load(part))) / spread);
    if (best < 0 || score > best_score ||
        (score == best_score && loads.rank(part, start) < loads.rank(best, start))) {
      best = part, best_score = score;
    }
  };
  // Parts that hold the same ends differ by load alone, so the least loaded of them stands for all.
  consider(loads.least_of([&](int64_t w) { return of_u[w] & of_v[w] & loads.open(w); }, start));
  // Mostly no part of one end alone, however empty, can match that.
  const double most_room = (most - static_cast<double>(loads.least())) / spread;
  if (best_score > std::max(gain_u, gain_v) + weight * most_room) return best;
  consider(loads.least_of([&](int64_t w) { return of_u[w] & ~of_v[w] & loads.open(w); }, start));
  consider(loads.least_of([&](int64_t w) { return of_v[w] & ~of_u[w] & loads.open(w); }, start));
  consider(loads.least_of_all(start));
  return best;
}

}  // namespace

void count_ends(Tensor degree, Tensor src, Tensor dst) {
  auto* counts = writable_flat<int32_t>(degree, ScalarType::Int, "degree");
  with_edges(src, dst, degree.size(0), [&](const auto& edges) {
    const auto count = [&](int64_t node) { counts[node] += counts[node] < INT32_MAX; };
    for (int64_t i = 0; i < edges.size; ++i) {
      if (i + kEdgesAhead < edges.size) {
        __builtin_prefetch(counts + edges.src[i + kEdgesAhead], 1);
        __builtin_prefetch(counts + edges.dst[i + kEdgesAhead], 1);
      }
      count(edges.src[i]);
      count(edges.dst[i]);
    }
  });
}

void mark_clones(Tensor clones, Tensor parts, Tensor src, Tensor dst, int64_t num_parts) {
  const CloneTable table = clone_table(clones, num_parts);
  const auto* part = flat<int32_t>(parts, ScalarType::Int, "parts");
  with_edges(src, dst, table.num_nodes, [&](const auto& edges) {
    check_parts(parts, edges.size);
    for (int64_t i = 0; i < edges.size; ++i) {
      check_index(part[i] >= 0 && part[i] < num_parts, "parts must lie in [0, ", num_parts,
                  "), got ", part[i]);
    }
    for (int64_t i = 0; i < edges.size; ++i) {
      if (i + kEdgesAhead < edges.size) {
        __builtin_prefetch(table.row(edges.src[i + kEdgesAhead]), 1);
        __builtin_prefetch(table.row(edges.dst[i + kEdgesAhead]), 1);
      }
      table.add(edges.src[i], part[i]);
      table.add(edges.dst[i], part[i]);
    }
  });
}

void libra_edges(Tensor parts, Tensor clones, Tensor loads, Tensor src, Tensor dst, Tensor degree,
                 int64_t limit, int64_t key, int64_t first) {
  const EdgeStreamView view =
      edge_stream_view(parts, clones, loads, degree, limit, key, first);
  assign_edges(view, parts, src, dst, [&](const auto& open, int64_t i, int64_t u, int64_t v) {
    return libra_part(view, open, i, u, v);
  });
}

void hdrf_edges(Tensor parts, Tensor clones, Tensor loads, Tensor src, Tensor dst, Tensor degree,
                double balance_weight, int64_t limit, int64_t key, int64_t first) {
  const EdgeStreamView view =
      edge_stream_view(parts, clones, loads, degree, limit, key, first);
  check(balance_weight >= 0 && balance_weight <= 1e6, "balance_weight must lie in [0, 1e6], got ",
        balance_weight);
  assign_edges(view, parts, src, dst, [&](const auto& open, int64_t i, int64_t u, int64_t v) {
    return hdrf_part(view, balance_weight, open, i, u, v);
  });
}

void dbh_edges(Tensor parts, Tensor src, Tensor dst, Tensor degree, int64_t num_parts,
               int64_t key) {
  check_num_parts(num_parts);
  auto* part = writable_flat<int32_t>(parts, ScalarType::Int, "parts");
  const auto* degrees = flat<int32_t>(degree, ScalarType::Int, "degree");
  with_edges(src, dst, degree.size(0), [&](const auto& edges) {
    check_parts(parts, edges.size);
    for_each_range(edges.size, kEdgesPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i + kEdgesAhead < end) {
          __builtin_prefetch(degrees + edges.src[i + kEdgesAhead]);
          __builtin_prefetch(degrees + edges.dst[i + kEdgesAhead]);
        }
        const int64_t u = edges.src[i], v = edges.dst[i];
        const int32_t of = degrees[u], other = degrees[v];
        const int64_t low = of < other || (of == other && u < v) ? u : v;
        const uint64_t hash = row_key(static_cast<uint64_t>(key), static_cast<uint64_t>(low));
        part[i] = static_cast<int32_t>(
            (static_cast<unsigned __int128>(hash) * static_cast<uint64_t>(num_parts)) >> 64);
      }
    });
  });
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("count_ends(Tensor(a!) degree, Tensor src, Tensor dst) -> ()");
  m.def(
      "mark_clones(Tensor(a!) clones, Tensor parts, Tensor src, Tensor dst, int num_parts) -> ()");
  m.def(
      "libra_edges(Tensor(a!) parts, Tensor(b!) clones, Tensor(c!) loads, Tensor src, Tensor dst, "
      "Tensor degree, int limit, int key, int first) -> ()");
  m.def(
      "hdrf_edges(Tensor(a!) parts, Tensor(b!) clones, Tensor(c!) loads, Tensor src, Tensor dst, "
      "Tensor degree, float balance_weight, int limit, int key, int first) -> ()");
  m.def(
      "dbh_edges(Tensor(a!) parts, Tensor src, Tensor dst, Tensor degree, int num_parts, int key) "
      "-> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("count_ends", TORCH_BOX(&gnn_dist::count_ends));
  m.impl("mark_clones", TORCH_BOX(&gnn_dist::mark_clones));
  m.impl("libra_edges", TORCH_BOX(&gnn_dist::libra_edges));
  m.impl("hdrf_edges", TORCH_BOX(&gnn_dist::hdrf_edges));
  m.impl("dbh_edges", TORCH_BOX(&gnn_dist::dbh_edges));
}
