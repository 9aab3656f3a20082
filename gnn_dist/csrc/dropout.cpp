// Operators on draws: argument checks, and the sharing of rows among threads.
#include "dropout.h"

#include <algorithm>
#include <memory>

#include "parallel.h"
#include "pool.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kEvery = int64_t{1} << 32;  // the threshold that drops everything
constexpr int64_t kDrawsPerTask = 1 << 14;

void check_threshold(int64_t threshold) {
  check(threshold >= 0 && threshold <= kEvery, "threshold must lie in [0, 2^32], got ", threshold);
}

const int64_t* ids_of(const Tensor& ids, int64_t num_rows) {
  const auto* data = flat<int64_t>(ids, ScalarType::Long, "ids");
  check(ids.size(0) == num_rows, "ids must have one element per row (", num_rows, "), got ",
        ids.size(0));
  return data;
}

// Runs f(begin, end) over the fixed blocks of rows.
template <class F>
void for_each_block(int64_t num_rows, const F& f) {
  for_each_task((num_rows + kDropoutBlock - 1) / kDropoutBlock, [&](int64_t block) {
    f(block * kDropoutBlock, std::min((block + 1) * kDropoutBlock, num_rows));
  });
}

DropoutCall make_call(const RowsView& x, const RowsView& out, const Tensor& ids, int64_t key,
                      int64_t threshold, double scale, bool relu) {
  check_threshold(threshold);
  DropoutCall call{};
  call.x = x.data;
  call.x_stride = x.stride;
  call.out = out.data;
  call.out_stride = out.stride;
  call.width = x.width;
  call.ids = ids_of(ids, x.num_rows);
  call.key = static_cast<uint64_t>(key);
  call.draws = threshold > 0;
  call.limit = static_cast<uint32_t>(threshold - 1);
  call.relu = relu;
  call.scale = scale;
  return call;
}

void forward(const Tensor& out, const Tensor& x, const OptionalTensor& bias, const Tensor& ids,
             int64_t key, int64_t threshold, double scale, bool relu) {
  const RowsView from = rows_view(x, "x");
  const FloatType dtype = float_type(from.dtype, "x");
  DropoutCall call = make_call(from, writable_rows(out, "out"), ids, key, threshold, scale, relu);
  if (bias.has_value()) {
    check_dtype(*bias, accumulate_dtype(from.dtype), "bias");
    check(bias->dim() == 1 && bias->size(0) == from.width && bias->is_contiguous(),
          "bias must be contiguous with ", from.width, " elements");
    call.bias = bias->data_ptr();
  }
  const auto loop = GNN_DIST_KERNELS(dropout).loops[dtype].forward;
  for_each_block(from.num_rows, [&](int64_t begin, int64_t end) { loop(call, begin, end); });
}

}  // namespace

Tensor bias_relu_dropout(Tensor x, OptionalTensor bias, Tensor ids, int64_t key,
                         int64_t threshold, double scale, bool relu) {
  check(x.dim() == 2, "x must have two dimensions, got ", x.dim());
  const Tensor out = new_rows(x, x.size(0), x.size(1), x.scalar_type());
  forward(out, x, bias, ids, key, threshold, scale, relu);
  return out;
}

void bias_relu_dropout_(Tensor x, OptionalTensor bias, Tensor ids, int64_t key, int64_t threshold,
                        double scale, bool relu) {
  forward(x, x, bias, ids, key, threshold, scale, relu);
}

std::tuple<Tensor, Tensor> relu_dropout_grad(Tensor grad, OptionalTensor result, Tensor ids,
                                             int64_t key, int64_t threshold, double scale,
                                             bool bias) {
  const RowsView from = rows_view(grad, "grad");
  const FloatType dtype = float_type(from.dtype, "grad");
  const Tensor out = new_rows(grad, from.num_rows, from.width, from.dtype);
  DropoutCall call = make_call(from, writable_rows(out, "out"), ids, key, threshold, scale,
                               result.has_value());
  if (result.has_value()) {
    const RowsView before = rows_view(*result, "result");
    check(before.dtype == from.dtype && before.num_rows == from.num_rows &&
              before.width == from.width,
          "result must have the shape and dtype of grad");
    call.result = before.data;
    call.result_stride = before.stride;
  }
  const DropoutLoops& loops = GNN_DIST_KERNELS(dropout).loops[dtype];
  const ScalarType sum_dtype = accumulate_dtype(from.dtype);
  const Tensor bias_grad = torch::stable::new_empty(grad, {bias ? from.width : 0}, sum_dtype);
  const int64_t num_blocks = (from.num_rows + kDropoutBlock - 1) / kDropoutBlock;
  const int64_t block_bytes = from.width * (sum_dtype == ScalarType::Double ? 8 : 4);
  const std::unique_ptr<char[]> sums(bias ? new char[num_blocks * block_bytes + 1] : nullptr);
  for_each_block(from.num_rows, [&](int64_t begin, int64_t end) {
    loops.backward(call, begin, end,
                   bias ? sums.get() + begin / kDropoutBlock * block_bytes : nullptr);
  });
  if (bias) {
    for_each_range(from.width, 64, [&](int64_t begin, int64_t end) {
      loops.add_blocks(sums.get(), num_blocks, from.width, begin, end, bias_grad.data_ptr());
    });
  }
  return {out, bias_grad};
}

Tensor keep_mask(Tensor ids, int64_t key, int64_t num_cols, int64_t threshold) {
  check_threshold(threshold);
  check(num_cols >= 0, "num_cols must not be negative, got ", num_cols);
  const auto* from = flat<int64_t>(ids, ScalarType::Long, "ids");
  const int64_t num_rows = ids.size(0);
  const Tensor out = new_rows(ids, num_rows, num_cols, ScalarType::Bool);
  auto* keep = static_cast<bool*>(out.data_ptr());
  const auto loop = GNN_DIST_KERNELS(dropout).keep;
  const int64_t rows = kDrawsPerTask / (num_cols + 1) + 1;
  for_each_range(num_rows, rows, [&](int64_t begin, int64_t end) {
    if (threshold > 0) {
      loop(from, static_cast<uint64_t>(key), static_cast<uint32_t>(threshold - 1), num_cols, begin,
           end, keep);
    } else {
      std::fill(keep + begin * num_cols, keep + end * num_cols, true);
    }
  });
  return out;
}

Tensor uniform_by_id(Tensor ids, int64_t key) {
  const auto* from = flat<int64_t>(ids, ScalarType::Long, "ids");
  const Tensor out = torch::stable::new_empty(ids, {ids.size(0)}, ScalarType::Double);
  auto* to = static_cast<double*>(out.data_ptr());
  const auto loop = GNN_DIST_KERNELS(dropout).uniform;
  for_each_range(ids.size(0), kDrawsPerTask, [&](int64_t begin, int64_t end) {
    loop(from, static_cast<uint64_t>(key), begin, end, to);
  });
  return out;
}

Tensor edge_ids(Tensor src_id, Tensor dst_id, Tensor copy_number) {
  const auto* src = flat<int64_t>(src_id, ScalarType::Long, "src_id");
  const auto* dst = flat<int64_t>(dst_id, ScalarType::Long, "dst_id");
  const auto* copy = flat<int64_t>(copy_number, ScalarType::Long, "copy_number");
  const int64_t num_edges = src_id.size(0);
  check(dst_id.size(0) == num_edges && copy_number.size(0) == num_edges,
        "src_id, dst_id and copy_number must have one size, got ", num_edges, ", ",
        dst_id.size(0), " and ", copy_number.size(0));
  const Tensor out = torch::stable::new_empty(src_id, {num_edges});
  auto* to = static_cast<int64_t*>(out.data_ptr());
  const auto loop = GNN_DIST_KERNELS(dropout).edge_ids;
  for_each_range(num_edges, kDrawsPerTask,
                 [&](int64_t begin, int64_t end) { loop(src, dst, copy, begin, end, to); });
  return out;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("keep_mask(Tensor ids, int key, int num_cols, int threshold) -> Tensor");
  m.def("uniform_by_id(Tensor ids, int key) -> Tensor");
  m.def("edge_ids(Tensor src_id, Tensor dst_id, Tensor copy_number) -> Tensor");
  m.def(
      "bias_relu_dropout(Tensor x, Tensor? bias, Tensor ids, int key, int threshold, float scale, "
      "bool relu) -> Tensor");
  m.def(
      "bias_relu_dropout_(Tensor(a!) x, Tensor? bias, Tensor ids, int key, int threshold, "
      "float scale, bool relu) -> ()");
  m.def(
      "relu_dropout_grad(Tensor grad, Tensor? result, Tensor ids, int key, int threshold, "
      "float scale, bool bias) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("keep_mask", TORCH_BOX(&gnn_dist::keep_mask));
  m.impl("uniform_by_id", TORCH_BOX(&gnn_dist::uniform_by_id));
  m.impl("edge_ids", TORCH_BOX(&gnn_dist::edge_ids));
  m.impl("bias_relu_dropout", TORCH_BOX(&gnn_dist::bias_relu_dropout));
  m.impl("bias_relu_dropout_", TORCH_BOX(&gnn_dist::bias_relu_dropout_));
  m.impl("relu_dropout_grad", TORCH_BOX(&gnn_dist::relu_dropout_grad));
}
