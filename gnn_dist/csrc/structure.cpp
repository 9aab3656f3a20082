// Structures made from structures, without sorting.
#include "parallel.h"
#include "tensors.h"

namespace gnn_dist {

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
  for (int64_t row = 0; row < csr.num_rows; ++row) {
    check_index(csr.indptr[row] >= 0 && csr.indptr[row] <= csr.indptr[row + 1] &&
                    csr.indptr[row + 1] <= csr.nnz,
                "indptr must not fall, it does at row ", row);
  }
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
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("transpose_csr", TORCH_BOX(&gnn_dist::transpose_csr));
}
