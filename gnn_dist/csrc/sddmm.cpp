// The inner products of both ends' rows, for each entry.
#include "attention_run.h"

namespace gnn_dist {

namespace {

Tensor sddmm(Tensor indptr, Tensor indices, Tensor rows, Tensor columns, int64_t heads) {
  const Setting setting(indptr, indices, columns, heads, "columns");
  const int64_t num_cols = columns.size(0);
  AttentionCall call = setting.call(setting.csr, num_cols, 0.0, 1.0);
  const Tensor out = setting.new_numbers(columns, setting.csr.nnz, heads);
  call.far = setting.rows(columns, num_cols, "columns");
  call.own = setting.rows(rows, setting.csr.num_rows, "rows");
  call.out = {out.data_ptr(), heads};
  if (setting.is_empty()) return torch::stable::fill_(out, 0.0);
  run(GNN_DIST_KERNELS(sddmm_loops).types[setting.type].widths[width_index(setting.width)], call,
      RowCuts(setting.csr));
  return out;
}

}  // namespace

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "sddmm(Tensor indptr, Tensor indices, Tensor rows, Tensor columns, int heads=1) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) { m.impl("sddmm", TORCH_BOX(&gnn_dist::sddmm)); }
