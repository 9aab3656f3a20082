// The two inner loops of an external bucket sort of edges by (destination, source).
//
// An edge is packed in 64 bits: its destination's number inside its bucket, then its source.
#include <tuple>

#include "draws.h"
#include "tensors.h"
#include "workers.h"

namespace gnn_dist {

namespace {

constexpr int64_t kEdgesPerTask = 1 << 18;
constexpr int64_t kLongRow = 192;  // rows from this length on are sorted digit by digit
constexpr int64_t kMostNodes = int64_t{1} << 36;
constexpr uint64_t kSourceKey = 0x243F6A8885A308D3, kDestinationKey = 0x13198A2E03707344;

// Numbers of `bits` bits each hold an id of num_nodes.
int id_bits(int64_t num_nodes) {
  int bits = 1;
  while ((int64_t{1} << bits) < num_nodes) ++bits;
  return bits;
}

struct Packing {
  Packing(int64_t num_nodes, int64_t shift) : src_bits(id_bits(num_nodes)), shift(shift) {
    check(num_nodes >= 0 && num_nodes <= kMostNodes, "num_nodes must lie in [0, 2^36], got ",
          num_nodes);
    check(shift >= 0 && shift + src_bits <= 64, "shift must lie in [0, ", 64 - src_bits,
          "], got ", shift);
    num_buckets = num_nodes == 0 ? 0 : ((num_nodes - 1) >> shift) + 1;
  }
  uint64_t pack(uint64_t src, uint64_t dst) const {
    return (dst & ((uint64_t{1} << shift) - 1)) << src_bits | src;
  }
  int64_t row(uint64_t packed) const { return static_cast<int64_t>(packed >> src_bits); }
  uint64_t src(uint64_t packed) const { return packed & ((uint64_t{1} << src_bits) - 1); }

  int src_bits;
  int64_t shift;
  int64_t num_buckets;
};

// What is found about a run of edges on the way.
struct Traits {
  int64_t self_loops = 0;
  // Sums of a(u) b(v) - a(v) b(u) over the edges u -> v, for random a and b: 0 if the edges are
  // symmetric, and else with a probability below 2^-62 (a nonzero form of degree 2).
  unsigned __int128 skew = 0;

  void add(uint64_t src, uint64_t dst) {
    using Wide = unsigned __int128;
    self_loops += src == dst;
    skew += Wide{mix(src + kSourceKey)} * mix(dst + kDestinationKey);
    skew -= Wide{mix(dst + kSourceKey)} * mix(src + kDestinationKey);
  }
  void add(const Traits& other) {
    self_loops += other.self_loops;
    skew += other.skew;
  }
};

template <class Id>
struct Scatter {
  const Id* src;
  const Id* dst;
  int64_t num_edges;
  int64_t num_nodes;
  Packing packing;

  int64_t end(int64_t task) const { return std::min((task + 1) * kEdgesPerTask, num_edges); }
  void count(int64_t task, int64_t* counts, Traits& traits) const {
    for (int64_t i = task * kEdgesPerTask; i < end(task); ++i) {
      const int64_t u = src[i], v = dst[i];
      check_index(u >= 0 && u < num_nodes && v >= 0 && v < num_nodes, "edge ", i, " (", u, " -> ",
                  v, ") must have ends in [0, ", num_nodes, ")");
      ++counts[v >> packing.shift];
      traits.add(static_cast<uint64_t>(u), static_cast<uint64_t>(v));
    }
  }
  void place(int64_t task, int64_t* next, int64_t* out) const {
    for (int64_t i = task * kEdgesPerTask; i < end(task); ++i) {
      const auto u = static_cast<uint64_t>(src[i]), v = static_cast<uint64_t>(dst[i]);
      out[next[v >> packing.shift]++] = static_cast<int64_t>(packing.pack(u, v));
    }
  }
};

// Each task counts its edges by bucket and later writes them behind those of earlier tasks, so that
// edges keep their order inside a bucket.
template <class Id>
Traits scatter(const Scatter<Id>& call, int64_t* packed, int64_t* bucket_ptr) {
  const int64_t buckets = call.packing.num_buckets;
  const int64_t tasks = (call.num_edges + kEdgesPerTask - 1) / kEdgesPerTask;
  std::vector<int64_t> next(tasks * buckets);
  std::vector<Traits> traits(tasks);
  for_each_task_of_workers(tasks, num_workers(tasks), [&](int64_t, int64_t task) {
    call.count(task, next.data() + task * buckets, traits[task]);
  });
  int64_t sum = 0;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    bucket_ptr[bucket] = sum;
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t count = next[task * buckets + bucket];
      next[task * buckets + bucket] = sum;
      sum += count;
    }
  }
  bucket_ptr[buckets] = sum;
  for_each_task(tasks, [&](int64_t task) {
    call.place(task, next.data() + task * buckets, packed);
  });
  Traits total;
  for (const Traits& part : traits) total.add(part);
  return total;
}

// Sorts numbers of `bits` bits by their digits of eight bits, the lowest first. Both arrays hold
// `size` numbers; the result is in `values`.
template <class Id>
void sort_digits(Id* values, Id* other, int64_t size, int bits) {
  constexpr int kDigit = 8;
  Id *from = values, *to = other;
  for (int shift = 0; shift < bits; shift += kDigit) {
    int64_t next[(1 << kDigit) + 1] = {};
    for (int64_t i = 0; i < size; ++i) ++next[((from[i] >> shift) & 255) + 1];
    for (int digit = 0; digit < (1 << kDigit); ++digit) next[digit + 1] += next[digit];
    for (int64_t i = 0; i < size; ++i) to[next[(from[i] >> shift) & 255]++] = from[i];
    std::swap(from, to);
  }
  if (from != values) std::copy_n(from, size, values);
}

// The edges of all buckets as they lie in the file: extent c of bucket b begins at
// table[c * (num_buckets + 1) + b] and ends where that of b + 1 begins.
struct Spill {
  const int64_t* packed;
  int64_t size;
  const int64_t* table;
  int64_t num_chunks;
  Packing packing;
  int64_t num_nodes;

  // Calls f(row, src) for the edges of a bucket with rows in [first, last), in the file's order.
  template <class F>
  void each(int64_t bucket, int64_t first, int64_t last, const F& f) const {
    const int64_t start = bucket << packing.shift;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      const int64_t* at = table + chunk * (packing.num_buckets + 1) + bucket;
      check_index(at[0] >= 0 && at[0] <= at[1] && at[1] <= size,
                  "extents must lie in the file of ", size, " edges, got ", at[0], " to ", at[1]);
      for (int64_t i = at[0]; i < at[1]; ++i) {
        const auto edge = static_cast<uint64_t>(packed[i]);
        const int64_t row = start + packing.row(edge);
        const auto src = static_cast<int64_t>(packing.src(edge));
        check_index(row < num_nodes && src < num_nodes, "packed edges must have ends in [0, ",
                    num_nodes, "), got ", src, " -> ", row);
        if (row >= first && row < last) f(row, src);
      }
    }
  }
};

// The rows of one bucket that are wanted, and where their sources go.
struct Task {
  int64_t bucket, first, last;
};

std::vector<Task> tasks_of(const Packing& packing, int64_t first_row, int64_t last_row) {
  std::vector<Task> tasks;
  for (int64_t row = first_row; row < last_row;) {
    const int64_t bucket = row >> packing.shift;
    const int64_t end = std::min((bucket + 1) << packing.shift, last_row);
    tasks.push_back({bucket, row, end});
    row = end;
  }
  return tasks;
}

void count_rows(const Spill& spill, const std::vector<Task>& tasks, int64_t first_row,
                int64_t* degree) {
  const auto size = static_cast<int64_t>(tasks.size());
  for_each_task_of_workers(size, num_workers(size), [&](int64_t, int64_t i) {
    const Task& task = tasks[i];
    spill.each(task.bucket, task.first, task.last,
               [&](int64_t row, int64_t) { ++degree[row - first_row]; });
  });
}

template <class Id>
void sort_task(const Spill& spill, const Task& task, int64_t first_row, const int64_t* indptr,
               Id* out) {
  const int64_t* offsets = indptr + (task.first - first_row);
  const int64_t rows = task.last - task.first;
  std::vector<int64_t> next(offsets, offsets + rows);
  spill.each(task.bucket, task.first, task.last, [&](int64_t row, int64_t src) {
    out[next[row - task.first]++] = static_cast<Id>(src);
  });
  std::vector<Id> other;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t size = offsets[row + 1] - offsets[row];
    Id* values = out + offsets[row];
    if (size < kLongRow) {
      std::sort(values, values + size);
    } else {
      if (static_cast<int64_t>(other.size()) < size) other.resize(size);
      sort_digits(values, other.data(), size, spill.packing.src_bits);
    }
  }
}

template <class Id>
void sort_rows(const Spill& spill, int64_t first_row, int64_t last_row, int64_t* indptr, Id* out) {
  const std::vector<Task> tasks = tasks_of(spill.packing, first_row, last_row);
  const auto size = static_cast<int64_t>(tasks.size());
  for_each_task_of_workers(size, num_workers(size), [&](int64_t, int64_t i) {
    sort_task(spill, tasks[i], first_row, indptr, out);
  });
}

// Keeps one copy of each entry of every row; returns how many there are.
template <class Id>
int64_t drop_repeats(int64_t num_rows, int64_t* indptr, Id* indices) {
  int64_t kept = 0, begin = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t end = indptr[row + 1];
    for (int64_t i = begin; i < end; ++i) {
      if (i == begin || indices[i] != indices[i - 1]) indices[kept++] = indices[i];
    }
    begin = end;
    indptr[row + 1] = kept;
  }
  return kept;
}

Spill spill_view(const Tensor& packed, const Tensor& table, int64_t num_nodes, int64_t shift) {
  const Packing packing(num_nodes, shift);
  check_dtype(table, ScalarType::Long, "table");
  const RowsView extents = rows_view(table, "table");
  check(extents.width == packing.num_buckets + 1 &&
            (extents.num_rows < 2 || extents.stride == extents.width),
        "table must be contiguous with ", packing.num_buckets + 1, " columns, got ",
        extents.width);
  return {flat<int64_t>(packed, ScalarType::Long, "packed"),
          packed.size(0),
          extents.row<int64_t>(0),
          extents.num_rows,
          packing,
          num_nodes};
}

void check_rows(int64_t first_row, int64_t last_row, int64_t num_nodes) {
  check_index(0 <= first_row && first_row <= last_row && last_row <= num_nodes,
              "rows must lie in [0, ", num_nodes, "], got ", first_row, " to ", last_row);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> pack_edges(Tensor src, Tensor dst, int64_t num_nodes,
                                              int64_t shift) {
  const Packing packing(num_nodes, shift);
  const bool narrow = src.scalar_type() == ScalarType::Int;
  const ScalarType dtype = narrow ? ScalarType::Int : ScalarType::Long;
  check_dtype(src, dtype, "src");
  check_dtype(dst, dtype, "dst");
  check(src.dim() == 1 && dst.dim() == 1 && src.size(0) == dst.size(0),
        "src and dst must be vectors of equal length");
  const int64_t size = src.size(0);
  const Tensor packed = torch::stable::new_empty(src, {size}, ScalarType::Long);
  const Tensor ptr = torch::stable::new_zeros(src, {packing.num_buckets + 1}, ScalarType::Long);
  auto* out = static_cast<int64_t*>(packed.data_ptr());
  auto* bucket_ptr = static_cast<int64_t*>(ptr.data_ptr());
  const Traits traits =
      narrow ? scatter(Scatter<int32_t>{flat<int32_t>(src, dtype, "src"),
                                        flat<int32_t>(dst, dtype, "dst"), size, num_nodes, packing},
                       out, bucket_ptr)
             : scatter(Scatter<int64_t>{flat<int64_t>(src, dtype, "src"),
                                        flat<int64_t>(dst, dtype, "dst"), size, num_nodes, packing},
                       out, bucket_ptr);
  const Tensor found = torch::stable::new_empty(src, {3}, ScalarType::Long);
  auto* values = static_cast<int64_t*>(found.data_ptr());
  values[0] = traits.self_loops;
  values[1] = static_cast<int64_t>(static_cast<uint64_t>(traits.skew));
  values[2] = static_cast<int64_t>(static_cast<uint64_t>(traits.skew >> 64));
  return {packed, ptr, found};
}

Tensor count_packed(Tensor packed, Tensor table, int64_t num_nodes, int64_t shift,
                    int64_t first_row, int64_t last_row) {
  const Spill spill = spill_view(packed, table, num_nodes, shift);
  check_rows(first_row, last_row, num_nodes);
  const Tensor degree = torch::stable::new_zeros(table, {last_row - first_row});
  count_rows(spill, tasks_of(spill.packing, first_row, last_row), first_row,
             static_cast<int64_t*>(degree.data_ptr()));
  return degree;
}

std::tuple<Tensor, Tensor> sort_packed(Tensor packed, Tensor table, int64_t num_nodes,
                                       int64_t shift, int64_t first_row, int64_t last_row,
                                       bool unique) {
  const Spill spill = spill_view(packed, table, num_nodes, shift);
  check_rows(first_row, last_row, num_nodes);
  const int64_t rows = last_row - first_row;
  const Tensor indptr = torch::stable::new_zeros(table, {rows + 1});
  auto* offsets = static_cast<int64_t*>(indptr.data_ptr());
  count_rows(spill, tasks_of(spill.packing, first_row, last_row), first_row, offsets + 1);
  for (int64_t row = 0; row < rows; ++row) offsets[row + 1] += offsets[row];
  const bool narrow = num_nodes <= INT32_MAX;
  Tensor indices = torch::stable::new_empty(table, {offsets[rows]},
                                            narrow ? ScalarType::Int : ScalarType::Long);
  int64_t kept = offsets[rows];
  const auto sort = [&](auto* out) {
    sort_rows(spill, first_row, last_row, offsets, out);
    if (unique) kept = drop_repeats(rows, offsets, out);
  };
  if (narrow) {
    sort(static_cast<int32_t*>(indices.data_ptr()));
  } else {
    sort(static_cast<int64_t*>(indices.data_ptr()));
  }
  return {indptr, torch::stable::narrow(indices, 0, 0, kept)};
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "pack_edges(Tensor src, Tensor dst, int num_nodes, int shift) -> (Tensor, Tensor, Tensor)");
  m.def(
      "count_packed(Tensor packed, Tensor table, int num_nodes, int shift, int first_row, "
      "int last_row) -> Tensor");
  m.def(
      "sort_packed(Tensor packed, Tensor table, int num_nodes, int shift, int first_row, "
      "int last_row, bool unique) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("pack_edges", TORCH_BOX(&gnn_dist::pack_edges));
  m.impl("count_packed", TORCH_BOX(&gnn_dist::count_packed));
  m.impl("sort_packed", TORCH_BOX(&gnn_dist::sort_packed));
}
