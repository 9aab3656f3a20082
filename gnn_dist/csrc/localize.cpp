// Turning a graph's rows into those of parts: which sources are halo, and local numbers for all.
//
// A part's halo is a set of global ids, held as one bit per node. What comes before a bit, counted
// up per word, is the position of a halo node in ascending order.
#include <atomic>
#include <tuple>

#include "tensors.h"
#include "workers.h"

namespace gnn_dist {

namespace {

constexpr int64_t kRowsPerTask = 1024;
constexpr int64_t kAhead = 24;  // entries between asking for an id and using it

inline int64_t count_bits(uint64_t word) {
  word -= (word >> 1) & 0x5555555555555555;
  word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333);
  word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
  return static_cast<int64_t>((word * 0x0101010101010101) >> 56);
}

// Consecutive rows of a CSR structure: row i holds indices[indptr[i] - indptr[0] ...].
template <class Id>
struct Block {
  const int64_t* indptr;
  const Id* indices;
  int64_t num_rows;
  int64_t num_entries;
  const int64_t* global_id;
  int64_t num_nodes;

  void check_row(int64_t row) const {
    check_index(indptr[0] <= indptr[row] && indptr[row] <= indptr[row + 1] &&
                    indptr[row + 1] - indptr[0] <= num_entries,
                "indptr must not fall, it does at row ", row);
  }
  // Calls f(i, global id of the source) for the i-th entry of a row.
  template <class F>
  void each(int64_t row, const F& f) const {
    check_row(row);
    const Id* from = indices + (indptr[row] - indptr[0]);
    const int64_t size = indptr[row + 1] - indptr[row];
    const int64_t left = num_entries - (indptr[row] - indptr[0]);
    for (int64_t i = 0; i < size; ++i) {
      if (i + kAhead < left) {
        const auto ahead = static_cast<uint64_t>(from[i + kAhead]);
        if (ahead < static_cast<uint64_t>(num_nodes)) __builtin_prefetch(global_id + ahead);
      }
      const int64_t src = from[i];
      check_index(src >= 0 && src < num_nodes, "indices must lie in [0, ", num_nodes, "), got ",
                  src);
      const int64_t id = global_id[src];
      check_index(id >= 0 && id < num_nodes, "global ids must lie in [0, ", num_nodes, "), got ",
                  id);
      f(i, id);
    }
  }
};

struct Group {
  const int64_t* node_ptr;
  int64_t num_parts;
  int64_t first_part;
  int64_t size;
  int64_t words;

  bool holds(int64_t part) const { return part >= first_part && part < first_part + size; }
};

Group group_view(const Tensor& node_ptr, const Tensor& marks, int64_t first_part,
                 int64_t num_nodes) {
  check_dtype(marks, ScalarType::Long, "marks");
  const RowsView bits = rows_view(marks, "marks");
  const auto* ptr = flat<int64_t>(node_ptr, ScalarType::Long, "node_ptr");
  const int64_t parts = node_ptr.size(0) - 1;
  check((bits.num_rows < 2 || bits.stride == bits.width) && bits.width == (num_nodes + 63) / 64,
        "marks must be contiguous with a bit per node, got ", bits.width, " words for ", num_nodes,
        " nodes");
  check_index(first_part >= 0 && first_part + bits.num_rows <= parts,
              "the group's parts must lie in [0, ", parts, ")");
  check_index(parts >= 0 && ptr[0] == 0 && ptr[parts] == num_nodes,
              "node_ptr must run from 0 to ", num_nodes);
  for (int64_t part = 0; part < parts; ++part) {
    check_index(ptr[part] <= ptr[part + 1], "node_ptr must not fall, it does at ", part);
  }
  return {ptr, parts, first_part, bits.num_rows, bits.width};
}

// Calls f with the block's rows in the type of its indices.
template <class F>
void with_block(const Tensor& indptr, const Tensor& indices, const Tensor& global_id, const F& f) {
  const auto* offsets = flat<int64_t>(indptr, ScalarType::Long, "indptr");
  const auto* ids = flat<int64_t>(global_id, ScalarType::Long, "global_id");
  check(indptr.size(0) > 0, "indptr must have at least one element");
  const int64_t rows = indptr.size(0) - 1, nodes = global_id.size(0), size = indices.size(0);
  if (indices.scalar_type() == ScalarType::Int) {
    f(Block<int32_t>{offsets, flat<int32_t>(indices, ScalarType::Int, "indices"), rows, size, ids,
                     nodes});
  } else {
    f(Block<int64_t>{offsets, flat<int64_t>(indices, ScalarType::Long, "indices"), rows, size, ids,
                     nodes});
  }
}

}  // namespace

// Marks the sources of rows whose part is in the group and does not own them.
void mark_halo(Tensor marks, Tensor indptr, Tensor indices, Tensor part, Tensor global_id,
               Tensor node_ptr, int64_t first_part) {
  const Group group = group_view(node_ptr, marks, first_part, global_id.size(0));
  auto* words = static_cast<uint64_t*>(marks.data_ptr());
  const auto* part_of = flat<int32_t>(part, ScalarType::Int, "part");
  with_block(indptr, indices, global_id, [&](const auto& block) {
    check(part.size(0) == block.num_rows, "part must have one element per row");
    const int64_t tasks = (block.num_rows + kRowsPerTask - 1) / kRowsPerTask;
    for_each_task_of_workers(tasks, num_workers(tasks), [&](int64_t, int64_t task) {
      const int64_t last = std::min((task + 1) * kRowsPerTask, block.num_rows);
      for (int64_t row = task * kRowsPerTask; row < last; ++row) {
        if (!group.holds(part_of[row])) continue;
        const int64_t start = group.node_ptr[part_of[row]];
        const int64_t stop = group.node_ptr[part_of[row] + 1];
        uint64_t* bits = words + (part_of[row] - first_part) * group.words;
        block.each(row, [&](int64_t, int64_t id) {
          const uint64_t bit = uint64_t{1} << (id & 63);
          if (id >= start && id < stop) return;
          // Most are marked already; a set bit needs no write, and no lock.
          if ((__atomic_load_n(bits + (id >> 6), __ATOMIC_RELAXED) & bit) == 0) {
            __atomic_fetch_or(bits + (id >> 6), bit, __ATOMIC_RELAXED);
          }
        });
      }
    });
  });
}

// How many bits of each row of marks are set before each word, and in all.
Tensor rank_marks(Tensor marks) {
  check_dtype(marks, ScalarType::Long, "marks");
  const RowsView bits = rows_view(marks, "marks");
  const Tensor ranks = torch::stable::new_empty(marks, {bits.num_rows, bits.width + 1});
  auto* out = static_cast<int64_t*>(ranks.data_ptr());
  for_each_task(bits.num_rows, [&](int64_t row) {
    const auto* words = bits.row<const uint64_t>(row);
    int64_t* rank = out + row * (bits.width + 1);
    rank[0] = 0;
    for (int64_t i = 0; i < bits.width; ++i) rank[i + 1] = rank[i] + count_bits(words[i]);
  });
  return ranks;
}

// The positions of set bits, ascending.
Tensor marked_ids(Tensor marks) {
  const auto* words = flat<uint64_t>(marks, ScalarType::Long, "marks");
  int64_t count = 0;
  for (int64_t i = 0; i < marks.size(0); ++i) count += count_bits(words[i]);
  const Tensor ids = torch::stable::new_empty(marks, {count});
  auto* out = static_cast<int64_t*>(ids.data_ptr());
  for (int64_t i = 0; i < marks.size(0); ++i) {
    for (uint64_t word = words[i]; word != 0; word &= word - 1) {
      *out++ = i * 64 + __builtin_ctzll(word);
    }
  }
  return ids;
}

// Local ids of the sources of some rows of a block, one row after the other, and the number of
// edges of each part of the group that come from another part.
std::tuple<Tensor, Tensor> localize(Tensor indptr, Tensor indices, Tensor rows, Tensor part,
                                    Tensor global_id, Tensor node_ptr, int64_t first_part,
                                    Tensor marks, Tensor ranks) {
  const Group group = group_view(node_ptr, marks, first_part, global_id.size(0));
  const auto* words = static_cast<const uint64_t*>(marks.data_ptr());
  check_dtype(ranks, ScalarType::Long, "ranks");
  const RowsView before = rows_view(ranks, "ranks");
  check(before.num_rows == group.size && before.width == group.words + 1 &&
            (before.num_rows < 2 || before.stride == before.width),
        "ranks must be those of the marks");
  const auto* chosen = flat<int64_t>(rows, ScalarType::Long, "rows");
  const auto* part_of = flat<int32_t>(part, ScalarType::Int, "part");
  const int64_t num_chosen = rows.size(0);
  std::vector<int64_t> out_ptr(num_chosen + 1);
  Tensor local;
  const Tensor cut = torch::stable::new_zeros(node_ptr, {group.size});
  auto* remote = static_cast<int64_t*>(cut.data_ptr());
  with_block(indptr, indices, global_id, [&](const auto& block) {
    check(part.size(0) == block.num_rows, "part must have one element per row");
    for (int64_t i = 0; i < num_chosen; ++i) {
      const int64_t row = chosen[i];
      check_index(row >= 0 && row < block.num_rows, "rows must lie in [0, ", block.num_rows,
                  "), got ", row);
      check_index(group.holds(part_of[row]), "rows must be of the group's parts");
      block.check_row(row);
      out_ptr[i + 1] = out_ptr[i] + block.indptr[row + 1] - block.indptr[row];
    }
    local = torch::stable::new_empty(node_ptr, {out_ptr[num_chosen]}, ScalarType::Int);
    auto* out = static_cast<int32_t*>(local.data_ptr());
    const int64_t tasks = (num_chosen + kRowsPerTask - 1) / kRowsPerTask;
    for_each_task_of_workers(tasks, num_workers(tasks), [&](int64_t, int64_t task) {
      const int64_t last = std::min((task + 1) * kRowsPerTask, num_chosen);
      for (int64_t i = task * kRowsPerTask; i < last; ++i) {
        const int64_t p = part_of[chosen[i]], k = p - first_part;
        const int64_t start = group.node_ptr[p], owned = group.node_ptr[p + 1] - start;
        const uint64_t* bits = words + k * group.words;
        const auto* rank = before.template row<const int64_t>(k);
        int32_t* to = out + out_ptr[i];
        int64_t num_remote = 0;
        block.each(chosen[i], [&](int64_t at, int64_t id) {
          if (id >= start && id < start + owned) {
            to[at] = static_cast<int32_t>(id - start);
            return;
          }
          const uint64_t below = (uint64_t{1} << (id & 63)) - 1;
          to[at] = static_cast<int32_t>(owned + rank[id >> 6] + count_bits(bits[id >> 6] & below));
          ++num_remote;
        });
        __atomic_fetch_add(remote + k, num_remote, __ATOMIC_RELAXED);
      }
    });
  });
  return {local, cut};
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "mark_halo(Tensor(a!) marks, Tensor indptr, Tensor indices, Tensor part, Tensor global_id, "
      "Tensor node_ptr, int first_part) -> ()");
  m.def("rank_marks(Tensor marks) -> Tensor");
  m.def("marked_ids(Tensor marks) -> Tensor");
  m.def(
      "localize(Tensor indptr, Tensor indices, Tensor rows, Tensor part, Tensor global_id, "
      "Tensor node_ptr, int first_part, Tensor marks, Tensor ranks) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("mark_halo", TORCH_BOX(&gnn_dist::mark_halo));
  m.impl("rank_marks", TORCH_BOX(&gnn_dist::rank_marks));
  m.impl("marked_ids", TORCH_BOX(&gnn_dist::marked_ids));
  m.impl("localize", TORCH_BOX(&gnn_dist::localize));
}
