// The entries of each row in the order of their columns' keys.
#include <algorithm>
#include <utility>
#include <vector>

#include "tensors.h"
#include "workers.h"

namespace gnn_dist {

namespace {

constexpr int64_t kRowsPerTask = 256;

struct RowOrder {
  CsrView csr;
  const int64_t* keys;
  int64_t num_keys;
  int64_t* out;

  void order_row(int64_t row, std::vector<std::pair<int64_t, int64_t>>& entries) const {
    const int64_t begin = csr.indptr[row], end = csr.indptr[row + 1];
    check_index(begin >= 0 && begin <= end && end <= csr.nnz,
                "indptr must not fall, it does at row ", row);
    entries.clear();
    bool ordered = true;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t column = csr.indices[e];
      check_index(column >= 0 && column < num_keys, "indices must lie in [0, ", num_keys, "), got ",
                  column);
      ordered = ordered && (entries.empty() || entries.back().first <= keys[column]);
      entries.emplace_back(keys[column], e);
    }
    // Pairs of a key and a position: equal keys stay in the order they had.
    if (!ordered) std::sort(entries.begin(), entries.end());
    for (int64_t e = begin; e < end; ++e) out[e] = entries[e - begin].second;
  }
};

}  // namespace

Tensor row_order(Tensor indptr, Tensor indices, Tensor keys) {
  const CsrView csr = csr_view(indptr, indices);
  const Tensor out = torch::stable::new_empty(indptr, {csr.nnz});
  const RowOrder call{csr, flat<int64_t>(keys, ScalarType::Long, "keys"), keys.size(0),
                      static_cast<int64_t*>(out.data_ptr())};
  const int64_t tasks = (csr.num_rows + kRowsPerTask - 1) / kRowsPerTask;
  const int64_t workers = num_workers(tasks);
  std::vector<std::vector<std::pair<int64_t, int64_t>>> entries(workers);
  for_each_task_of_workers(tasks, workers, [&](int64_t worker, int64_t task) {
    const int64_t end = std::min((task + 1) * kRowsPerTask, csr.num_rows);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) call.order_row(row, entries[worker]);
  });
  return out;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("row_order(Tensor indptr, Tensor indices, Tensor keys) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) { m.impl("row_order", TORCH_BOX(&gnn_dist::row_order)); }
