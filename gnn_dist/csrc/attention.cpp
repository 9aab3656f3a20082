// Attention operators: argument checks.
#include "attention.h"

#include "attention_run.h"

namespace gnn_dist {

namespace {

// What the schemas call drop_key, drop_below, keep_scale, src_id and dst_id.
struct Drops {
  int64_t key, below;
  double scale;
  const OptionalTensor &src_id, &dst_id;

  EdgeDrops edges(const Setting& setting, int64_t num_src, bool own_is_dst) const {
    EdgeDrops out;
    out.on = below > 0;
    if (!out.on) return out;
    constexpr int64_t kAll = int64_t{1} << 32;
    check(below <= kAll, "drop_below must be at most 2^32, got ", below);
    check(src_id.has_value() && dst_id.has_value(), "dropout needs src_id and dst_id");
    const auto* src = flat<int64_t>(*src_id, ScalarType::Long, "src_id");
    const auto* dst = flat<int64_t>(*dst_id, ScalarType::Long, "dst_id");
    check(src_id->size(0) == num_src && dst_id->size(0) == setting.csr.num_rows,
          "src_id and dst_id must have ", num_src, " and ", setting.csr.num_rows,
          " elements, got ", src_id->size(0), " and ", dst_id->size(0));
    out.key = static_cast<uint64_t>(key);
    out.threshold = static_cast<uint32_t>(std::min(below, kAll - 1));
    out.scale = below == kAll ? 0.0 : scale;
    out.own_id = own_is_dst ? dst : src;
    out.far_id = own_is_dst ? src : dst;
    out.own_is_dst = own_is_dst;
    return out;
  }
};

void check_transposed(const CsrView& csr, const CsrView& transposed, int64_t num_src) {
  check(transposed.num_rows == num_src && transposed.nnz == csr.nnz,
        "the transposed structure must have ", num_src, " rows and ", csr.nnz, " entries, got ",
        transposed.num_rows, " and ", transposed.nnz);
}

const AttentionPass& pass_of(const AttentionKernels& kernels, const Setting& setting,
                             PassKind kind) {
  return kernels.passes[setting.type][width_index(setting.width)][kind];
}

constexpr int64_t kGatFields = 4, kFields = 3;

std::tuple<Tensor, Tensor, Tensor> gat(Tensor indptr, Tensor indices, Tensor x, Tensor att_src,
                                       Tensor att_dst, double slope, int64_t drop_key,
                                       int64_t drop_below, double keep_scale,
                                       OptionalTensor src_id, OptionalTensor dst_id) {
  check(att_src.dim() == 2, "att_src must have two dimensions, got ", att_src.dim());
  const Setting setting(indptr, indices, x, att_src.size(0), "x");
  const int64_t num_src = x.size(0), num_dst = setting.csr.num_rows;
  check(num_dst <= num_src, "x must have at least ", num_dst, " rows, got ", num_src);
  AttentionCall call = setting.call(setting.csr, num_src, slope, 1.0);
  const Tensor out = new_rows(x, num_dst, x.size(1));
  const Tensor score = setting.new_numbers(x, num_src, call.lanes);
  const Tensor state = setting.new_numbers(x, num_dst, kGatFields * call.lanes);
  call.far = call.own = setting.rows(x, num_src, "x");
  call.out = setting.rows(out, num_dst, "out");
  call.attention = setting.numbers(att_src, {setting.heads, setting.width}, "att_src");
  call.attention_second = setting.numbers(att_dst, {setting.heads, setting.width}, "att_dst");
  call.far_score = score.data_ptr();
  call.state = state.data_ptr();
  call.fields = kGatFields;
  call.num_dst = num_dst;
  const Drops drops{drop_key, drop_below, keep_scale, src_id, dst_id};
  call.drops = drops.edges(setting, num_src, true);
  if (setting.is_empty()) {
    return {out, torch::stable::fill_(score, 0.0), torch::stable::fill_(state, 0.0)};
  }
  const auto scores =
      GNN_DIST_KERNELS(gat_scores).types[setting.type].scores[width_index(setting.width)];
  for_each_range(num_src, 512, [&](int64_t begin, int64_t end) {
    scores(call, begin, end, score.data_ptr(), state.data_ptr());
  });
  run(pass_of(GNN_DIST_KERNELS(gat), setting, kForward), call, RowCuts(setting.csr));
  return {out, score, state};
}

// What the schemas call score, state and grad; and whether the gradient of x is written over x, and
// the inner products into `state`, which has room for them.
struct GatKept {
  const Tensor &score, &state, &grad;
  bool in_place;
};

std::tuple<Tensor, Tensor, Tensor> gat_gradients(const CsrView& transposed, const Setting& setting,
                                                 const Tensor& x, const Tensor& att_src,
                                                 const Tensor& att_dst, const GatKept& kept,
                                                 double slope, const Drops& drops) {
  const int64_t num_src = x.size(0), num_dst = setting.csr.num_rows;
  check_transposed(setting.csr, transposed, num_src);
  check(num_dst <= num_src, "x must have at least ", num_dst, " rows, got ", num_src);
  AttentionCall by_rows = setting.call(setting.csr, num_src, slope, 1.0);
  AttentionCall by_columns = setting.call(transposed, num_dst, slope, 1.0);
  const Tensor grad_x = kept.in_place ? x : new_rows(x, num_src, x.size(1));
  const Tensor grad_src = torch::stable::new_zeros(att_src, {setting.heads, setting.width});
  const Tensor grad_dst = torch::stable::new_zeros(att_src, {setting.heads, setting.width});
  if (setting.is_empty()) return {grad_x, grad_src, grad_dst};
  const Tensor state = kept.in_place ? kept.state : torch::stable::clone(kept.state);
  const Tensor dst_grad = setting.new_numbers(x, num_dst, by_rows.lanes);
  by_rows.far = by_columns.own = setting.rows(x, num_src, "x");
  by_rows.grad = by_columns.far = setting.rows(kept.grad, num_dst, "grad");
  by_rows.far_score = by_columns.own_score =
      setting.numbers(kept.score, {num_src, by_rows.lanes}, "score");
  by_rows.state = setting.numbers(state, {num_dst, kGatFields * by_rows.lanes}, "state");
  by_columns.far_state = by_rows.state;
  by_rows.fields = by_columns.fields = kGatFields;
  by_rows.own_grad = by_columns.own_grad = dst_grad.data_ptr();
  by_columns.num_dst = num_dst;
  by_columns.attention = setting.numbers(att_src, {setting.heads, setting.width}, "att_src");
  by_columns.attention_second = setting.numbers(att_dst, {setting.heads, setting.width}, "att_dst");
  by_columns.out = setting.rows(grad_x, num_src, "grad_x");
  by_rows.drops = drops.edges(setting, num_src, true);
  by_columns.drops = drops.edges(setting, num_src, false);
  const AttentionKernels& kernels = GNN_DIST_KERNELS(gat);
  run(pass_of(kernels, setting, kBackwardRows), by_rows, RowCuts(setting.csr));
  // Of x, a column's task reads the row that it writes, and has read it before it writes.
  run(pass_of(kernels, setting, kBackwardColumns), by_columns, RowCuts(transposed),
      grad_src.data_ptr(), grad_dst.data_ptr());
  return {grad_x, grad_src, grad_dst};
}

std::tuple<Tensor, Tensor, Tensor> gat_grad(Tensor indptr, Tensor indices, Tensor t_indptr,
                                            Tensor t_indices, Tensor x, Tensor att_src,
                                            Tensor att_dst, Tensor score, Tensor state, Tensor grad,
                                            double slope, int64_t drop_key, int64_t drop_below,
                                            double keep_scale, OptionalTensor src_id,
                                            OptionalTensor dst_id) {
  check(att_src.dim() == 2, "att_src must have two dimensions, got ", att_src.dim());
  return gat_gradients(csr_view(t_indptr, t_indices),
                       Setting(indptr, indices, x, att_src.size(0), "x"), x, att_src, att_dst,
                       {score, state, grad, false}, slope,
                       {drop_key, drop_below, keep_scale, src_id, dst_id});
}

std::tuple<Tensor, Tensor> gat_grad_over(Tensor indptr, Tensor indices, Tensor t_indptr,
                                         Tensor t_indices, Tensor x, Tensor att_src, Tensor att_dst,
                                         Tensor score, Tensor state, Tensor grad, double slope,
                                         int64_t drop_key, int64_t drop_below, double keep_scale,
                                         OptionalTensor src_id, OptionalTensor dst_id) {
  check(att_src.dim() == 2, "att_src must have two dimensions, got ", att_src.dim());
  const Setting setting(indptr, indices, x, att_src.size(0), "x");
  writable_rows(x, "x");
  const auto [grad_x, grad_src, grad_dst] =
      gat_gradients(csr_view(t_indptr, t_indices), setting, x, att_src, att_dst,
                    {score, state, grad, true}, slope,
                    {drop_key, drop_below, keep_scale, src_id, dst_id});
  return {grad_src, grad_dst};
}

std::tuple<Tensor, Tensor> gatv2(Tensor indptr, Tensor indices, Tensor x_src, Tensor x_dst,
                                 Tensor att, double slope, int64_t drop_key, int64_t drop_below,
                                 double keep_scale, OptionalTensor src_id, OptionalTensor dst_id) {
  check(att.dim() == 2, "att must have two dimensions, got ", att.dim());
  const Setting setting(indptr, indices, x_src, att.size(0), "x_src");
  const int64_t num_src = x_src.size(0), num_dst = setting.csr.num_rows;
  AttentionCall call = setting.call(setting.csr, num_src, slope, 1.0);
  const Tensor out = new_rows(x_src, num_dst, x_src.size(1));
  const Tensor state = setting.new_numbers(x_src, num_dst, kFields * call.lanes);
  call.far = setting.rows(x_src, num_src, "x_src");
  call.own = setting.rows(x_dst, num_dst, "x_dst");
  call.attention = setting.numbers(att, {setting.heads, setting.width}, "att");
  call.out = setting.rows(out, num_dst, "out");
  call.state = state.data_ptr();
  call.fields = kFields;
  const Drops drops{drop_key, drop_below, keep_scale, src_id, dst_id};
  call.drops = drops.edges(setting, num_src, true);
  if (setting.is_empty()) return {out, torch::stable::fill_(state, 0.0)};
  run(pass_of(GNN_DIST_KERNELS(gatv2), setting, kForward), call, RowCuts(setting.csr));
  return {out, state};
}

std::tuple<Tensor, Tensor, Tensor> gatv2_grad(Tensor indptr, Tensor indices, Tensor t_indptr,
                                              Tensor t_indices, Tensor x_src, Tensor x_dst,
                                              Tensor att, Tensor state, Tensor out, Tensor grad,
                                              double slope, int64_t drop_key, int64_t drop_below,
                                              double keep_scale, OptionalTensor src_id,
                                              OptionalTensor dst_id) {
  check(att.dim() == 2, "att must have two dimensions, got ", att.dim());
  const Setting setting(indptr, indices, x_src, att.size(0), "x_src");
  const CsrView transposed = csr_view(t_indptr, t_indices);
  const int64_t num_src = x_src.size(0), num_dst = setting.csr.num_rows;
  check_transposed(setting.csr, transposed, num_src);
  const Drops drops{drop_key, drop_below, keep_scale, src_id, dst_id};
  AttentionCall by_rows = setting.call(setting.csr, num_src, slope, 1.0);
  AttentionCall by_columns = setting.call(transposed, num_dst, slope, 1.0);
  const Tensor grad_src = new_rows(x_src, num_src, x_src.size(1));
  const Tensor grad_dst = new_rows(x_src, num_dst, x_src.size(1));
  const Tensor grad_att = torch::stable::new_zeros(att, {setting.heads, setting.width});
  if (setting.is_empty()) return {grad_src, grad_dst, grad_att};
  const Tensor whole = torch::stable::clone(state);
  by_rows.far = by_columns.own = setting.rows(x_src, num_src, "x_src");
  by_rows.own = by_columns.far_key = setting.rows(x_dst, num_dst, "x_dst");
  by_rows.grad = by_columns.far = setting.rows(grad, num_dst, "grad");
  by_rows.result = setting.rows(out, num_dst, "out");
  by_rows.out = setting.rows(grad_dst, num_dst, "grad_dst");
  by_columns.out = setting.rows(grad_src, num_src, "grad_src");
  by_rows.attention = by_columns.attention =
      setting.numbers(att, {setting.heads, setting.width}, "att");
  by_rows.state = setting.numbers(whole, {num_dst, kFields * by_rows.lanes}, "state");
  by_columns.far_state = by_rows.state;
  by_rows.fields = by_columns.fields = kFields;
  by_rows.drops = drops.edges(setting, num_src, true);
  by_columns.drops = drops.edges(setting, num_src, false);
  const AttentionKernels& kernels = GNN_DIST_KERNELS(gatv2);
  run(pass_of(kernels, setting, kBackwardRows), by_rows, RowCuts(setting.csr),
      grad_att.data_ptr());
  run(pass_of(kernels, setting, kBackwardColumns), by_columns, RowCuts(transposed));
  return {grad_src, grad_dst, grad_att};
}

std::tuple<Tensor, Tensor> dot_attention(Tensor indptr, Tensor indices, Tensor query, Tensor key,
                                         Tensor value, int64_t heads, double scale,
                                         int64_t drop_key, int64_t drop_below, double keep_scale,
                                         OptionalTensor src_id, OptionalTensor dst_id) {
  const Setting setting(indptr, indices, value, heads, "value");
  const int64_t num_src = value.size(0), num_dst = setting.csr.num_rows;
  AttentionCall call = setting.call(setting.csr, num_src, 0.0, scale);
  const Tensor out = new_rows(value, num_dst, value.size(1));
  const Tensor state = setting.new_numbers(value, num_dst, kFields * call.lanes);
  call.far = setting.rows(value, num_src, "value");
  call.far_key = setting.rows(key, num_src, "key");
  call.own = setting.rows(query, num_dst, "query");
  call.out = setting.rows(out, num_dst, "out");
  call.state = state.data_ptr();
  call.fields = kFields;
  const Drops drops{drop_key, drop_below, keep_scale, src_id, dst_id};
  call.drops = drops.edges(setting, num_src, true);
  if (setting.is_empty()) return {out, torch::stable::fill_(state, 0.0)};
  run(pass_of(GNN_DIST_KERNELS(dot_attention), setting, kForward), call, RowCuts(setting.csr));
  return {out, state};
}

std::tuple<Tensor, Tensor, Tensor> dot_attention_grad(
    Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor query, Tensor key,
    Tensor value, Tensor state, Tensor out, Tensor grad, int64_t heads, double scale,
    int64_t drop_key, int64_t drop_below, double keep_scale, OptionalTensor src_id,
    OptionalTensor dst_id) {
  const Setting setting(indptr, indices, value, heads, "value");
  const CsrView transposed = csr_view(t_indptr, t_indices);
  const int64_t num_src = value.size(0), num_dst = setting.csr.num_rows;
  check_transposed(setting.csr, transposed, num_src);
  const Drops drops{drop_key, drop_below, keep_scale, src_id, dst_id};
  AttentionCall by_rows = setting.call(setting.csr, num_src, 0.0, scale);
  AttentionCall by_columns = setting.call(transposed, num_dst, 0.0, scale);
  const Tensor grad_query = new_rows(query, num_dst, value.size(1));
  const Tensor grad_key = new_rows(key, num_src, value.size(1));
  const Tensor grad_value = new_rows(value, num_src, value.size(1));
  if (setting.is_empty()) return {grad_query, grad_key, grad_value};
  const Tensor whole = torch::stable::clone(state);
  by_rows.far = by_columns.own = setting.rows(value, num_src, "value");
  by_rows.far_key = by_columns.own_key = setting.rows(key, num_src, "key");
  by_rows.own = by_columns.far_key = setting.rows(query, num_dst, "query");
  by_rows.grad = by_columns.far = setting.rows(grad, num_dst, "grad");
  by_rows.result = setting.rows(out, num_dst, "out");
  by_rows.out = setting.rows(grad_query, num_dst, "grad_query");
  by_columns.out = setting.rows(grad_value, num_src, "grad_value");
  by_columns.out_second = setting.rows(grad_key, num_src, "grad_key");
  by_rows.state = setting.numbers(whole, {num_dst, kFields * by_rows.lanes}, "state");
  by_columns.far_state = by_rows.state;
  by_rows.fields = by_columns.fields = kFields;
  by_rows.drops = drops.edges(setting, num_src, true);
  by_columns.drops = drops.edges(setting, num_src, false);
  const AttentionKernels& kernels = GNN_DIST_KERNELS(dot_attention);
  run(pass_of(kernels, setting, kBackwardRows), by_rows, RowCuts(setting.csr));
  run(pass_of(kernels, setting, kBackwardColumns), by_columns, RowCuts(transposed));
  return {grad_query, grad_key, grad_value};
}

}  // namespace

}  // namespace gnn_dist

// Dropout of coefficients: dropped where a draw lies below drop_below, out of 2^32; the others are
// scaled.
#define GNN_DIST_DROPS                                                              \
  "int drop_key=0, int drop_below=0, float keep_scale=1.0, Tensor? src_id=None, " \
  "Tensor? dst_id=None"

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "gat(Tensor indptr, Tensor indices, Tensor x, Tensor att_src, Tensor att_dst, "
      "float slope, " GNN_DIST_DROPS ") -> (Tensor, Tensor, Tensor)");
  m.def(
      "gat_grad(Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor x, "
      "Tensor att_src, Tensor att_dst, Tensor score, Tensor state, Tensor grad, "
      "float slope, " GNN_DIST_DROPS ") -> (Tensor, Tensor, Tensor)");
  // The gradient of x is written over it; state's room for inner products is written, too.
  m.def(
      "gat_grad_over(Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, "
      "Tensor(a!) x, Tensor att_src, Tensor att_dst, Tensor score, Tensor(b!) state, Tensor grad, "
      "float slope, " GNN_DIST_DROPS ") -> (Tensor, Tensor)");
  m.def(
      "gatv2(Tensor indptr, Tensor indices, Tensor x_src, Tensor x_dst, Tensor att, "
      "float slope, " GNN_DIST_DROPS ") -> (Tensor, Tensor)");
  m.def(
      "gatv2_grad(Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, "
      "Tensor x_src, Tensor x_dst, Tensor att, Tensor state, Tensor out, Tensor grad, "
      "float slope, " GNN_DIST_DROPS ") -> (Tensor, Tensor, Tensor)");
  m.def(
      "dot_attention(Tensor indptr, Tensor indices, Tensor query, Tensor key, Tensor value, "
      "int heads, float scale, " GNN_DIST_DROPS ") -> (Tensor, Tensor)");
  m.def(
      "dot_attention_grad(Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, "
      "Tensor query, Tensor key, Tensor value, Tensor state, Tensor out, Tensor grad, "
      "int heads, float scale, " GNN_DIST_DROPS ") -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("gat", TORCH_BOX(&gnn_dist::gat));
  m.impl("gat_grad", TORCH_BOX(&gnn_dist::gat_grad));
  m.impl("gat_grad_over", TORCH_BOX(&gnn_dist::gat_grad_over));
  m.impl("gatv2", TORCH_BOX(&gnn_dist::gatv2));
  m.impl("gatv2_grad", TORCH_BOX(&gnn_dist::gatv2_grad));
  m.impl("dot_attention", TORCH_BOX(&gnn_dist::dot_attention));
  m.impl("dot_attention_grad", TORCH_BOX(&gnn_dist::dot_attention_grad));
}
