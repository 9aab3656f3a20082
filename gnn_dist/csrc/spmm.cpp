// Aggregation operators: argument checks, and the sharing of rows among threads.
#include "spmm.h"

#include <atomic>
#include <memory>

#include "parallel.h"
#include "pool.h"
#include "schedule.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kSharesPerTask = 1 << 14;

// Columns are worked on panel by panel: rows of a panel are short enough for registers, and more of
// them stay in cache. Each panel belongs to one head.
struct Panel {
  Columns columns;
  int64_t head;
};

std::vector<Panel> panels(int64_t width, int64_t heads, int64_t most) {
  std::vector<Panel> out;
  const int64_t per_head = width / heads;
  const int64_t count = (per_head + most - 1) / most;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = per_head * i / count, last = per_head * (i + 1) / count;
      out.push_back({{head * per_head + first, last - first}, head});
    }
  }
  return out;
}

int64_t widest_panel(FloatType type) {
  const int64_t vector_bytes =
      instruction_set() == InstructionSet::avx512 ? 64
      : instruction_set() == InstructionSet::avx2 ? 32
                                                  : 16;
  const int64_t lanes = vector_bytes / (type == kFloat64 ? 8 : 4);
  return max_vectors(vector_bytes) * lanes;
}

SpmmCall for_panel(SpmmCall call, const Panel& panel, int64_t element_bytes) {
  call.head = panel.head;
  const int64_t rows = kBytesAhead / (panel.columns.width * element_bytes + 1);
  call.ahead = std::clamp(rows, kLeastAhead, kMostAhead);
  return call;
}

void run(const SpmmLoops& loops, const SpmmCall& call, const CsrView& csr,
         const std::vector<Panel>& parts, int64_t element_bytes) {
  const RowCuts schedule(csr);
  std::atomic<bool> valid{true};
  const int64_t num_pieces = schedule.num_pieces();
  const std::unique_ptr<char[]> partials(new char[num_pieces * kPartialBytes + 1]);
  for (const Panel& panel : parts) {
    const SpmmCall here = for_panel(call, panel, element_bytes);
    // Pieces first: they are the longest tasks.
    for_each_task(num_pieces + schedule.num_ranges(), [&](int64_t task) {
      bool ok;
      if (task < num_pieces) {
        const RowPiece& piece = schedule.pieces[task];
        ok = loops.piece(here, panel.columns, piece, partials.get() + task * kPartialBytes);
      } else {
        const int64_t range = task - num_pieces;
        ok = loops.rows(here, panel.columns, schedule.row_ptr[range], schedule.row_ptr[range + 1]);
      }
      if (!ok) valid.store(false, std::memory_order_relaxed);
    });
    for (int64_t hub = 0; hub < schedule.num_hubs(); ++hub) {
      const int64_t first = schedule.hub_ptr[hub];
      loops.finish(here, panel.columns, schedule.pieces[first].row,
                   partials.get() + first * kPartialBytes, schedule.hub_ptr[hub + 1] - first);
    }
  }
  if (!valid) throw_bad_structure(call.num_cols);
}

SpmmCall make_call(const CsrView& csr, const RowsView& x, const RowsView& out) {
  SpmmCall call{};
  call.indptr = csr.indptr;
  call.indices = csr.indices;
  call.nnz = csr.nnz;
  call.x = x.data;
  call.num_cols = x.num_rows;
  call.x_stride = x.stride;
  call.out = out.data;
  call.out_stride = out.stride;
  return call;
}

void check_out(const RowsView& x, const RowsView& out, int64_t num_rows) {
  check(out.dtype == x.dtype, "out must have the dtype of x");
  check(out.num_rows == num_rows && out.width == x.width, "out must be of shape (", num_rows, ", ",
        x.width, "), got (", out.num_rows, ", ", out.width, ")");
}

const void* scale(const OptionalTensor& values, ScalarType dtype, int64_t size, const char* name) {
  if (!values.has_value()) return nullptr;
  check_dtype(*values, dtype, name);
  check(values->dim() == 1 && values->size(0) == size && (size < 2 || values->stride(0) == 1),
        name, " must be contiguous with ", size, " elements");
  return values->data_ptr();
}

// Returns the number of heads.
int64_t set_weight(SpmmCall& call, const OptionalTensor& weight, const OptionalTensor& position,
                   ScalarType dtype) {
  if (!weight.has_value()) {
    check(!position.has_value(), "position is for weights, of which there are none");
    return 1;
  }
  check_dtype(*weight, dtype, "weight");
  const int64_t dim = weight->dim();
  check(dim == 1 || dim == 2, "weight must have one or two dimensions, got ", dim);
  check(weight->is_contiguous(), "weight must be contiguous");
  const int64_t heads = dim == 2 ? weight->size(1) : 1;
  if (position.has_value()) {
    call.position = flat<int32_t>(*position, ScalarType::Int, "position");
    check(position->size(0) == call.nnz, "position must have one element per entry");
    for (int64_t i = 0; i < call.nnz; ++i) {
      check_index(call.position[i] >= 0 && call.position[i] < weight->size(0),
                  "position must lie in [0, ", weight->size(0), "), got ", call.position[i]);
    }
  } else {
    check(weight->size(0) == call.nnz, "weight must have one row per entry (", call.nnz, "), got ",
          weight->size(0));
  }
  call.weight = weight->data_ptr();
  call.weight_stride = heads;
  return heads;
}

void spmm_into(const Tensor& out, const Tensor& indptr, const Tensor& indices, const Tensor& x,
               const OptionalTensor& weight, const OptionalTensor& position,
               const OptionalTensor& src_scale, const OptionalTensor& dst_scale, bool add) {
  const CsrView csr = csr_view(indptr, indices);
  const RowsView from = rows_view(x, "x"), to = writable_rows(out, "out");
  check_out(from, to, csr.num_rows);
  const FloatType type = float_type(from.dtype, "x");
  const ScalarType factor = accumulate_dtype(from.dtype);
  SpmmCall call = make_call(csr, from, to);
  const int64_t heads = set_weight(call, weight, position, factor);
  check(heads > 0 && from.width % heads == 0, "x's width ", from.width,
        " must be a multiple of the heads of weight, ", heads);
  call.src_scale = scale(src_scale, factor, from.num_rows, "src_scale");
  call.dst_scale = scale(dst_scale, factor, csr.num_rows, "dst_scale");
  call.add = add;
  run(GNN_DIST_KERNELS(spmm).loops[type][kSum], call, csr,
      panels(from.width, heads, widest_panel(type)), x.element_size());
}

}  // namespace

Tensor spmm(Tensor indptr, Tensor indices, Tensor x, OptionalTensor weight,
            OptionalTensor position, OptionalTensor src_scale, OptionalTensor dst_scale) {
  check(indptr.dim() == 1 && indptr.size(0) > 0, "indptr must have at least one element");
  check(x.dim() == 2, "x must have two dimensions, got ", x.dim());
  const Tensor out = new_rows(x, indptr.size(0) - 1, x.size(1));
  spmm_into(out, indptr, indices, x, weight, position, src_scale, dst_scale, false);
  return out;
}

void spmm_add(Tensor out, Tensor indptr, Tensor indices, Tensor x, OptionalTensor weight,
              OptionalTensor position, OptionalTensor src_scale, OptionalTensor dst_scale) {
  spmm_into(out, indptr, indices, x, weight, position, src_scale, dst_scale, true);
}

void spmm_extreme(Tensor out, Tensor count, Tensor indptr, Tensor indices, Tensor x,
                  bool largest, bool add) {
  const CsrView csr = csr_view(indptr, indices);
  const RowsView from = rows_view(x, "x"), to = writable_rows(out, "out");
  check_out(from, to, csr.num_rows);
  const FloatType type = float_type(from.dtype, "x");
  SpmmCall call = make_call(csr, from, to);
  call.add = add;
  check_dtype(count, ScalarType::Int, "count");
  const RowsView counts = writable_rows(count, "count");
  check(counts.num_rows == to.num_rows && counts.width == to.width && counts.stride == to.stride,
        "count must have the shape and strides of out");
  call.count = static_cast<int32_t*>(counts.data);
  run(GNN_DIST_KERNELS(spmm).loops[type][largest ? kMax : kMin], call, csr,
      panels(from.width, 1, widest_panel(type)), x.element_size());
}

Tensor spmm_share(Tensor grad, Tensor count) {
  const RowsView from = rows_view(grad, "grad"), counts = rows_view(count, "count");
  check_dtype(count, ScalarType::Int, "count");
  check(counts.num_rows == from.num_rows && counts.width == from.width,
        "count must have the shape of grad");
  const FloatType type = float_type(from.dtype, "grad");
  const Tensor out = new_rows(grad, from.num_rows, from.width);
  const ShareCall call{from.data,     from.stride,    static_cast<const int32_t*>(counts.data),
                       counts.stride, out.data_ptr(), from.width};
  const auto loop = GNN_DIST_KERNELS(spmm).share[type];
  for_each_range(from.num_rows, kSharesPerTask / (from.width + 1) + 1,
                 [&](int64_t begin, int64_t end) { loop(call, begin, end); });
  return out;
}

Tensor spmm_where_equal(Tensor indptr, Tensor indices, Tensor x, Tensor second, Tensor own) {
  const CsrView csr = csr_view(indptr, indices);
  const RowsView first = rows_view(x, "x"), other = rows_view(second, "second"),
                 mine = rows_view(own, "own");
  check(mine.num_rows == csr.num_rows, "own must have ", csr.num_rows, " rows, got ",
        mine.num_rows);
  check(first.num_rows == other.num_rows && first.width == other.width &&
            first.stride == other.stride && first.dtype == other.dtype,
        "x and second must have one shape, strides and dtype");
  check(mine.width == first.width && mine.dtype == first.dtype,
        "own must have the width and dtype of x");
  const Tensor out = new_rows(x, csr.num_rows, first.width);
  const FloatType type = float_type(first.dtype, "x");
  SpmmCall call = make_call(csr, first, writable_rows(out, "out"));
  call.second = other.data;
  call.own = mine.data;
  call.own_stride = mine.stride;
  run(GNN_DIST_KERNELS(spmm).loops[type][kWhereEqual], call, csr,
      panels(first.width, 1, widest_panel(type)), x.element_size());
  return out;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "spmm(Tensor indptr, Tensor indices, Tensor x, Tensor? weight=None, Tensor? position=None, "
      "Tensor? src_scale=None, Tensor? dst_scale=None) -> Tensor");
  m.def(
      "spmm_add(Tensor(a!) out, Tensor indptr, Tensor indices, Tensor x, Tensor? weight=None, "
      "Tensor? position=None, Tensor? src_scale=None, Tensor? dst_scale=None) -> ()");
  m.def(
      "spmm_extreme(Tensor(a!) out, Tensor(b!) count, Tensor indptr, Tensor indices, Tensor x, "
      "bool largest, bool add) -> ()");
  m.def("spmm_share(Tensor grad, Tensor count) -> Tensor");
  m.def(
      "spmm_where_equal(Tensor indptr, Tensor indices, Tensor x, Tensor second, Tensor own) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("spmm", TORCH_BOX(&gnn_dist::spmm));
  m.impl("spmm_add", TORCH_BOX(&gnn_dist::spmm_add));
  m.impl("spmm_extreme", TORCH_BOX(&gnn_dist::spmm_extreme));
  m.impl("spmm_share", TORCH_BOX(&gnn_dist::spmm_share));
  m.impl("spmm_where_equal", TORCH_BOX(&gnn_dist::spmm_where_equal));
}
