// Quantisation operators: argument checks, and the sharing of rows among threads.
#include "quantize.h"

#include <atomic>

#include "parallel.h"
#include "pool.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kColumnsPerTask = 1 << 14;

int64_t packed_width(int64_t width, int64_t bits) {
  check(bits == 1 || bits == 2 || bits == 4 || bits == 8, "bits must be 1, 2, 4 or 8, got ", bits);
  check(width >= 0 && width <= INT64_MAX / 16, "num_cols must lie in [0, 2^59), got ", width);
  return kGridBytes + (width * bits + 7) / 8;
}

QuantizeCall make_call(const RowsView& x, int64_t bits, const RowsView& packed) {
  QuantizeCall call{};
  call.x = x.data;
  call.num_rows = x.num_rows;
  call.x_stride = x.stride;
  call.width = x.width;
  call.num_packed = packed.num_rows;
  call.bits = static_cast<int>(bits);
  call.packed = static_cast<uint8_t*>(packed.data);
  call.packed_stride = packed.stride;
  return call;
}

template <class Loop>
void run(const QuantizeCall& call, const Loop& loop) {
  for_each_range(call.num_packed, kColumnsPerTask / (call.width + 1) + 1, loop);
}

void check_packed(const RowsView& packed, int64_t num_rows, int64_t width, const char* name) {
  check(packed.dtype == ScalarType::Byte, name, " must be uint8, got ",
        torch::headeronly::toString(packed.dtype));
  check(packed.num_rows == num_rows && packed.width == width, name, " must be of shape (", num_rows,
        ", ", width, "), got (", packed.num_rows, ", ", packed.width, ")");
}

}  // namespace

void quantize_rows_into(Tensor out, Tensor x, OptionalTensor index, Tensor ids, int64_t key,
                        int64_t bits) {
  const RowsView from = rows_view(x, "x"), to = writable_rows(out, "out");
  const FloatType dtype = float_type(from.dtype, "x");
  const int64_t num_packed = index ? index->size(0) : from.num_rows;
  check_packed(to, num_packed, packed_width(from.width, bits), "out");
  QuantizeCall call = make_call(from, bits, to);
  if (index) call.index = flat<int64_t>(*index, ScalarType::Long, "index");
  call.ids = flat<int64_t>(ids, ScalarType::Long, "ids");
  check(ids.size(0) == num_packed, "ids must have one element per row (", num_packed, "), got ",
        ids.size(0));
  call.key = static_cast<uint64_t>(key);
  const QuantizeLoop loop = GNN_DIST_KERNELS(quantize).quantize[dtype];
  std::atomic<bool> valid{true};
  run(call, [&](int64_t begin, int64_t end) {
    if (!loop(call, begin, end)) valid.store(false, std::memory_order_relaxed);
  });
  check_index(valid, "index must lie in [0, ", from.num_rows, ")");
}

Tensor quantize_rows(Tensor x, OptionalTensor index, Tensor ids, int64_t key, int64_t bits) {
  check(x.dim() == 2, "x must have two dimensions, got ", x.dim());
  check(!index || index->dim() == 1, "index must have one dimension");
  const int64_t num_packed = index ? index->size(0) : x.size(0);
  const Tensor out = new_rows(x, num_packed, packed_width(x.size(1), bits), ScalarType::Byte);
  quantize_rows_into(out, x, index, ids, key, bits);
  return out;
}

void dequantize_rows_into(Tensor out, Tensor packed, int64_t bits, bool add) {
  const RowsView to = writable_rows(out, "out"), from = rows_view(packed, "packed");
  const FloatType dtype = float_type(to.dtype, "out");
  check_packed(from, to.num_rows, packed_width(to.width, bits), "packed");
  QuantizeCall call = make_call(to, bits, from);
  call.add = add;
  const DequantizeLoop loop = GNN_DIST_KERNELS(quantize).dequantize[dtype];
  run(call, [&](int64_t begin, int64_t end) { loop(call, begin, end); });
}

Tensor dequantize_rows(Tensor packed, int64_t num_cols, int64_t bits, ScalarType dtype) {
  check(packed.dim() == 2, "packed must have two dimensions, got ", packed.dim());
  packed_width(num_cols, bits);
  const Tensor out = new_rows(packed, packed.size(0), num_cols, dtype);
  dequantize_rows_into(out, packed, bits, false);
  return out;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("quantize_rows(Tensor x, Tensor? index, Tensor ids, int key, int bits) -> Tensor");
  m.def(
      "quantize_rows_into(Tensor(a!) out, Tensor x, Tensor? index, Tensor ids, int key, int bits) "
      "-> ()");
  m.def("dequantize_rows(Tensor packed, int num_cols, int bits, ScalarType dtype) -> Tensor");
  m.def("dequantize_rows_into(Tensor(a!) out, Tensor packed, int bits, bool add) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("quantize_rows", TORCH_BOX(&gnn_dist::quantize_rows));
  m.impl("quantize_rows_into", TORCH_BOX(&gnn_dist::quantize_rows_into));
  m.impl("dequantize_rows", TORCH_BOX(&gnn_dist::dequantize_rows));
  m.impl("dequantize_rows_into", TORCH_BOX(&gnn_dist::dequantize_rows_into));
}
