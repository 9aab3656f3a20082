// Quantisation operators: argument checks, and the sharing of rows among threads.
#include "quantize.h"

#include "parallel.h"
#include "pool.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kColumnsPerTask = 1 << 14;

int64_t packed_width(int64_t width, int64_t bits) {
  check(bits == 1 || bits == 2 || bits == 4 || bits == 8, "bits must be 1, 2, 4 or 8, got ", bits);
  check(width >= 0 && width <= INT64_MAX / 16, "num_cols must lie in [0, 2^59), got ", width);
  return (width * bits + 7) / 8;
}

QuantizeCall make_call(const RowsView& x, int64_t bits, const Tensor& packed,
                       const Tensor& params) {
  QuantizeCall call{};
  call.x = x.data;
  call.x_stride = x.stride;
  call.width = x.width;
  call.bits = static_cast<int>(bits);
  call.packed = static_cast<uint8_t*>(packed.data_ptr());
  call.packed_stride = packed.size(1);
  call.params = static_cast<float*>(params.data_ptr());
  return call;
}

void run(QuantizeLoop loop, const QuantizeCall& call, int64_t num_rows) {
  for_each_range(num_rows, kColumnsPerTask / (call.width + 1) + 1,
                 [&](int64_t begin, int64_t end) { loop(call, begin, end); });
}

void dequantize(const Tensor& out, const Tensor& packed, const Tensor& params, int64_t bits,
                bool add) {
  const RowsView to = writable_rows(out, "out");
  const FloatType dtype = float_type(to.dtype, "out");
  const int64_t width = packed_width(to.width, bits);
  check_dtype(packed, ScalarType::Byte, "packed");
  check_dtype(params, ScalarType::Float, "params");
  check(packed.dim() == 2 && packed.size(0) == to.num_rows && packed.size(1) == width &&
            packed.is_contiguous(),
        "packed must be contiguous of shape (", to.num_rows, ", ", width, ")");
  check(params.dim() == 2 && params.size(0) == to.num_rows && params.size(1) == 2 &&
            params.is_contiguous(),
        "params must be contiguous of shape (", to.num_rows, ", 2)");
  QuantizeCall call = make_call(to, bits, packed, params);
  call.add = add;
  run(GNN_DIST_KERNELS(quantize).dequantize[dtype], call, to.num_rows);
}

}  // namespace

std::tuple<Tensor, Tensor> quantize_rows(Tensor x, Tensor ids, int64_t key, int64_t bits) {
  const RowsView from = rows_view(x, "x");
  const FloatType dtype = float_type(from.dtype, "x");
  const int64_t width = packed_width(from.width, bits);
  const Tensor packed = new_rows(x, from.num_rows, width, ScalarType::Byte);
  const Tensor params = new_rows(x, from.num_rows, 2, ScalarType::Float);
  QuantizeCall call = make_call(from, bits, packed, params);
  call.ids = flat<int64_t>(ids, ScalarType::Long, "ids");
  check(ids.size(0) == from.num_rows, "ids must have one element per row (", from.num_rows,
        "), got ", ids.size(0));
  call.key = static_cast<uint64_t>(key);
  run(GNN_DIST_KERNELS(quantize).quantize[dtype], call, from.num_rows);
  return {packed, params};
}

Tensor dequantize_rows(Tensor packed, Tensor params, int64_t num_cols, int64_t bits,
                       ScalarType dtype) {
  check(packed.dim() == 2, "packed must have two dimensions, got ", packed.dim());
  packed_width(num_cols, bits);
  const Tensor out = new_rows(packed, packed.size(0), num_cols, dtype);
  dequantize(out, packed, params, bits, false);
  return out;
}

void dequantize_rows_add(Tensor out, Tensor packed, Tensor params, int64_t bits) {
  dequantize(out, packed, params, bits, true);
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("quantize_rows(Tensor x, Tensor ids, int key, int bits) -> (Tensor, Tensor)");
  m.def(
      "dequantize_rows(Tensor packed, Tensor params, int num_cols, int bits, ScalarType dtype) -> "
      "Tensor");
  m.def(
      "dequantize_rows_add(Tensor(a!) out, Tensor packed, Tensor params, int bits) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("quantize_rows", TORCH_BOX(&gnn_dist::quantize_rows));
  m.impl("dequantize_rows", TORCH_BOX(&gnn_dist::dequantize_rows));
  m.impl("dequantize_rows_add", TORCH_BOX(&gnn_dist::dequantize_rows_add));
}
