// Neighbour sampling row by row, and the local numbers of what was found.
#include <memory>
#include <tuple>

#include "picks.h"
#include "workers.h"

namespace gnn_dist {

namespace {

constexpr int64_t kRowsPerTask = 256;
constexpr int64_t kAhead = 16;  // entries between asking for a piece of memory and using it

struct RowSample {
  CsrView csr;
  const int64_t* rows;
  const int64_t* row_ids;
  int64_t num_rows;
  PickRule rule;
  uint64_t key;

  void prefetch(int64_t i) const {
    if (i < num_rows) {
      __builtin_prefetch(csr.indptr + std::clamp<int64_t>(rows[i], 0, csr.num_rows));
    }
  }
  // Returns the first entry of rows[i] and their number.
  std::pair<int64_t, int64_t> entries(int64_t i) const {
    check_index(rows[i] >= 0 && rows[i] < csr.num_rows, "rows must lie in [0, ", csr.num_rows,
                "), got ", rows[i]);
    return entries_of_row(csr, rows[i]);
  }
};

int64_t num_tasks(int64_t num_rows) { return (num_rows + kRowsPerTask - 1) / kRowsPerTask; }

// out_indptr[i + 1] = how many entries of rows[i] will be drawn.
void count_entries(const RowSample& call, int64_t* out_indptr) {
  const int64_t tasks = num_tasks(call.num_rows);
  const Picker picker;
  for_each_task_of_workers(tasks, num_workers(tasks), [&](int64_t, int64_t task) {
    const int64_t end = std::min((task + 1) * kRowsPerTask, call.num_rows);
    for (int64_t i = task * kRowsPerTask; i < end; ++i) {
      call.prefetch(i + kAhead);
      const auto [begin, degree] = call.entries(i);
      out_indptr[i + 1] = picker.count(call.rule, begin, degree);
    }
  });
}

void draw_entries(const RowSample& call, const int64_t* out_indptr, int32_t* columns,
                  int64_t* position) {
  const int64_t tasks = num_tasks(call.num_rows), workers = num_workers(tasks);
  std::vector<Picker> pickers(workers);
  for_each_task_of_workers(tasks, workers, [&](int64_t worker, int64_t task) {
    const int64_t first = task * kRowsPerTask;
    const int64_t last = std::min(first + kRowsPerTask, call.num_rows);
    for (int64_t i = first; i < last; ++i) {
      call.prefetch(i + kAhead);
      const auto [begin, degree] = call.entries(i);
      const uint64_t row = row_key(call.key, static_cast<uint64_t>(call.row_ids[i]));
      pickers[worker].pick(call.rule, row, begin, degree, out_indptr[i + 1] - out_indptr[i],
                           position + out_indptr[i]);
    }
    const int64_t end = out_indptr[last];
    for (int64_t e = out_indptr[first]; e < end; ++e) {
      if (e + kAhead < end) __builtin_prefetch(call.csr.indices + position[e + kAhead]);
      columns[e] = call.csr.indices[position[e]];
    }
  });
}

// Local numbers of ids, given out in order of first appearance.
class Numbering {
 public:
  explicit Numbering(int64_t num_ids) {
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * num_ids) ++bits;
    shift_ = 64 - bits;
    slots_.resize(int64_t{1} << bits, -1);
    ids_.reset(new int64_t[num_ids + 1]);
  }
  int64_t size() const { return size_; }
  const int64_t* ids() const { return ids_.get(); }
  void prefetch(int64_t id) const { __builtin_prefetch(slots_.data() + home(id)); }
  int32_t number(int64_t id) {
    const uint64_t mask = slots_.size() - 1;
    for (uint64_t slot = home(id);; slot = (slot + 1) & mask) {
      if (slots_[slot] < 0) {
        ids_[size_] = id;
        return slots_[slot] = static_cast<int32_t>(size_++);
      }
      if (ids_[slots_[slot]] == id) return slots_[slot];
    }
  }

 private:
  uint64_t home(int64_t id) const { return mix(static_cast<uint64_t>(id)) >> shift_; }

  int shift_;
  std::vector<int32_t> slots_;
  std::unique_ptr<int64_t[]> ids_;
  int64_t size_ = 0;
};

template <class Column>
void number_columns(Numbering& numbering, const Column* columns, int64_t size, int32_t* local) {
  for (int64_t i = 0; i < size; ++i) {
    if (i + kAhead < size) numbering.prefetch(columns[i + kAhead]);
    local[i] = numbering.number(columns[i]);
  }
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> sample_neighbors(Tensor indptr, Tensor indices, Tensor rows,
                                                    Tensor row_ids, int64_t fanout, bool replace,
                                                    int64_t key, OptionalTensor weight) {
  const CsrView csr = csr_view(indptr, indices);
  const int64_t num_rows = rows.dim() == 1 ? rows.size(0) : 0;
  const RowSample call{csr,
                       flat<int64_t>(rows, ScalarType::Long, "rows"),
                       flat<int64_t>(row_ids, ScalarType::Long, "row_ids"),
                       num_rows,
                       {fanout, replace, WeightView(weight, csr.nnz)},
                       static_cast<uint64_t>(key)};
  check(row_ids.size(0) == num_rows, "row_ids must have one element per row (", num_rows,
        "), got ", row_ids.size(0));
  call.rule.check_fanout();
  const Tensor out_indptr = torch::stable::new_empty(indptr, {num_rows + 1});
  auto* offsets = static_cast<int64_t*>(out_indptr.data_ptr());
  offsets[0] = 0;
  count_entries(call, offsets);
  for (int64_t i = 0; i < num_rows; ++i) offsets[i + 1] += offsets[i];
  const Tensor columns = torch::stable::new_empty(indices, {offsets[num_rows]});
  const Tensor position = torch::stable::new_empty(indptr, {offsets[num_rows]});
  draw_entries(call, offsets, static_cast<int32_t*>(columns.data_ptr()),
               static_cast<int64_t*>(position.data_ptr()));
  return {out_indptr, columns, position};
}

std::tuple<Tensor, Tensor> relabel(Tensor dst, Tensor columns) {
  const auto* first = flat<int64_t>(dst, ScalarType::Long, "dst");
  const bool narrow = columns.scalar_type() == ScalarType::Int;
  const auto* ints = narrow ? flat<int32_t>(columns, ScalarType::Int, "columns") : nullptr;
  const auto* longs = narrow ? nullptr : flat<int64_t>(columns, ScalarType::Long, "columns");
  const int64_t num_dst = dst.size(0), size = columns.size(0);
  check(num_dst + size <= kMostRowEntries, "there must be fewer than 2^31 ids, got ",
        num_dst + size);
  Numbering numbering(num_dst + size);
  for (int64_t i = 0; i < num_dst; ++i) {
    check(numbering.number(first[i]) == i, "dst must not repeat an id, ", first[i], " is repeated");
  }
  const Tensor local = torch::stable::new_empty(columns, {size}, ScalarType::Int);
  auto* numbers = static_cast<int32_t*>(local.data_ptr());
  if (narrow) {
    number_columns(numbering, ints, size, numbers);
  } else {
    number_columns(numbering, longs, size, numbers);
  }
  const Tensor ids = torch::stable::new_empty(dst, {numbering.size()});
  std::copy_n(numbering.ids(), numbering.size(), static_cast<int64_t*>(ids.data_ptr()));
  return {ids, local};
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "sample_neighbors(Tensor indptr, Tensor indices, Tensor rows, Tensor row_ids, int fanout, "
      "bool replace, int key, Tensor? weight=None) -> (Tensor, Tensor, Tensor)");
  m.def("relabel(Tensor dst, Tensor columns) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("sample_neighbors", TORCH_BOX(&gnn_dist::sample_neighbors));
  m.impl("relabel", TORCH_BOX(&gnn_dist::relabel));
}
