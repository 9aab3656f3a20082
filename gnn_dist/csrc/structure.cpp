// Structures made from structures, without sorting.
#include <utility>

#include "parallel.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kRowsPerTask = 4096;

// Which of some ranges of columns a column is in. A table tells the first range that begins in the
// columns of equal leading bits; few begin after it.
class ColumnRanges {
 public:
  ColumnRanges(const int64_t* bounds, int64_t num_ranges) : bounds_(bounds) {
    const int64_t num_cols = bounds[num_ranges];
    while ((num_cols >> shift_) >= kTableSize) ++shift_;
    table_.resize((num_cols >> shift_) + 1);
    int64_t range = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(table_.size()); ++i) {
      while (range + 1 < num_ranges && bounds[range + 1] <= i << shift_) ++range;
      table_[i] = static_cast<int32_t>(range);
    }
  }
  int64_t of(int64_t column) const {
    int64_t range = table_[column >> shift_];
    while (bounds_[range + 1] <= column) ++range;
    return range;
  }

 private:
  static constexpr int64_t kTableSize = 1 << 12;
  const int64_t* bounds_;
  int64_t shift_ = 0;
  std::vector<int32_t> table_;
};

// Calls f(row, entry, range) for every entry, rows in parallel; false: a column is in no range.
template <class F>
bool for_each_cut_entry(const CsrView& csr, const ColumnRanges& ranges, int64_t num_cols,
                        const F& f) {
  std::atomic<bool> valid{true};
  for_each_range(csr.num_rows, kRowsPerTask, [&](int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t i = csr.indptr[row]; i < csr.indptr[row + 1]; ++i) {
        const int64_t column = csr.indices[i];
        if (static_cast<uint64_t>(column) >= static_cast<uint64_t>(num_cols)) {
          valid.store(false, std::memory_order_relaxed);
          return;
        }
        f(row, i, ranges.of(column));
      }
    }
  });
  return valid;
}

void check_offsets(const CsrView& csr) {
  for (int64_t row = 0; row < csr.num_rows; ++row) {
    check_index(csr.indptr[row] >= 0 && csr.indptr[row] <= csr.indptr[row + 1] &&
                    csr.indptr[row + 1] <= csr.nnz,
                "indptr must not fall, it does at row ", row);
  }
}

}  // namespace

// Cuts a structure into ranges of its columns: one pass counts, one fills. Entries of a row keep
// their order.
std::tuple<Tensor, Tensor, Tensor> cut_columns(Tensor indptr, Tensor indices, Tensor bounds,
                                               bool positions) {
  const CsrView csr = csr_view(indptr, indices);
  const auto* ends = flat<int64_t>(bounds, ScalarType::Long, "bounds");
  const int64_t num_ranges = bounds.size(0) - 1, stride = csr.num_rows + 1;
  check(num_ranges > 0 && ends[0] == 0, "bounds must begin with 0 and end with another number");
  for (int64_t range = 0; range < num_ranges; ++range) {
    check(ends[range] <= ends[range + 1], "bounds must not fall");
  }
  check(!positions || csr.nnz <= INT32_MAX, "entries must number less than 2^31");
  check_offsets(csr);
  const int64_t num_cols = ends[num_ranges];
  const Tensor out_indptr =
      torch::stable::fill_(torch::stable::new_empty(indptr, {num_ranges, stride}), 0.0);
  const Tensor out_indices = torch::stable::new_empty(indices, {csr.nnz});
  const Tensor position = torch::stable::new_empty(indices, {positions ? csr.nnz : 0});
  auto* offsets = static_cast<int64_t*>(out_indptr.data_ptr());
  auto* columns = static_cast<int32_t*>(out_indices.data_ptr());
  auto* from = static_cast<int32_t*>(position.data_ptr());
  const ColumnRanges ranges(ends, num_ranges);
  const bool valid = for_each_cut_entry(csr, ranges, num_cols, [&](int64_t row, int64_t, int64_t r) {
    ++offsets[r * stride + row + 1];
  });
  if (!valid) throw_bad_structure(num_cols);
  std::vector<int64_t> start(num_ranges + 1, 0);
  for (int64_t range = 0; range < num_ranges; ++range) {
    // A row's count becomes where it begins, which filling then moves to where it ends.
    int64_t before = 0;
    for (int64_t row = 1; row < stride; ++row) {
      before += std::exchange(offsets[range * stride + row], before);
    }
    start[range + 1] = start[range] + before;
  }
  for_each_cut_entry(csr, ranges, num_cols, [&](int64_t row, int64_t entry, int64_t r) {
    const int64_t at = start[r] + offsets[r * stride + row + 1]++;
    columns[at] = static_cast<int32_t>(csr.indices[entry] - ends[r]);
    if (positions) from[at] = static_cast<int32_t>(entry);
  });
  return {out_indptr, out_indices, position};
}

// Transposes by counting. Threads share the columns, so that each writes to a part of the result
// that fits its cache better, and entries of a column keep their order.
std::tuple<Tensor, Tensor, Tensor> transpose_csr(Tensor indptr, Tensor indices, int64_t num_cols) {
  const CsrView csr = csr_view(indptr, indices);
  check(num_cols >= 0 && num_cols <= INT32_MAX, "num_cols must lie in [0, 2^31), got ", num_cols);
  check(csr.num_rows <= INT32_MAX && csr.nnz <= INT32_MAX,
        "rows and entries must number less than 2^31");
  const Tensor out_indptr = torch::stable::new_zeros(indptr, {num_cols + 1});
  const Tensor out_indices = torch::stable::new_empty(indices, {csr.nnz});
  const Tensor position = torch::stable::new_empty(indices, {csr.nnz});
  auto* offsets = static_cast<int64_t*>(out_indptr.data_ptr());
  auto* rows = static_cast<int32_t*>(out_indices.data_ptr());
  auto* from = static_cast<int32_t*>(position.data_ptr());
  for (int64_t i = 0; i < csr.nnz; ++i) {
    check_index(csr.indices[i] >= 0 && csr.indices[i] < num_cols, "indices must lie in [0, ",
                num_cols, "), got ", csr.indices[i]);
    ++offsets[csr.indices[i] + 1];
  }
  for (int64_t column = 0; column < num_cols; ++column) offsets[column + 1] += offsets[column];
  check_offsets(csr);
  std::vector<int64_t> next(offsets, offsets + num_cols);
  const int64_t threads = std::max<int64_t>(1, torch::stable::get_num_threads());
  for_each_task(threads, [&](int64_t part) {
    // Columns of about nnz / threads entries.
    const auto bound = [&](int64_t i) {
      return std::lower_bound(offsets, offsets + num_cols, csr.nnz * i / threads) - offsets;
    };
    const int64_t first = part == 0 ? 0 : bound(part);
    const int64_t last = part + 1 == threads ? num_cols : bound(part + 1);
    for (int64_t row = 0; row < csr.num_rows; ++row) {
      for (int64_t i = csr.indptr[row]; i < csr.indptr[row + 1]; ++i) {
        const int32_t column = csr.indices[i];
        if (column < first || column >= last) continue;
        const int64_t at = next[column]++;
        rows[at] = static_cast<int32_t>(row);
        from[at] = static_cast<int32_t>(i);
      }
    }
  });
  return {out_indptr, out_indices, position};
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "transpose_csr(Tensor indptr, Tensor indices, int num_cols) -> (Tensor, Tensor, Tensor)");
  m.def(
      "cut_columns(Tensor indptr, Tensor indices, Tensor bounds, bool positions) -> (Tensor, "
      "Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("transpose_csr", TORCH_BOX(&gnn_dist::transpose_csr));
  m.impl("cut_columns", TORCH_BOX(&gnn_dist::cut_columns));
}
