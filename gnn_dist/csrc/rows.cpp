// Row movement operators: argument checks, and the sharing of rows among threads.
#include "rows.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "parallel.h"
#include "pool.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kTaskBytes = 1 << 18;  // moved by one task

int64_t rows_per_task(int64_t row_bytes) {
  return std::clamp<int64_t>(kTaskBytes / (row_bytes + 1), 16, 16384);
}

// Whether a copying loop should write past the caches, which a result of this size would sweep.
bool streams(const GatherCall& call) {
  constexpr int64_t kLine = 64, kLarge = int64_t{32} << 20;
  return call.width * call.num_index >= kLarge && call.width % kLine == 0 &&
         call.out_stride % kLine == 0 && reinterpret_cast<uintptr_t>(call.out) % kLine == 0;
}

struct IndexView {
  const void* data;
  int64_t size;
  const IndexedLoops* loops;
};

IndexView index_view(const Tensor& index) {
  const RowKernels& kernels = GNN_DIST_KERNELS(rows);
  if (index.scalar_type() == ScalarType::Int) {
    return {flat<int32_t>(index, ScalarType::Int, "index"), index.size(0), &kernels.by_int32};
  }
  check(index.scalar_type() == ScalarType::Long, "index must be int64 or int32, got ",
        torch::headeronly::toString(index.scalar_type()));
  return {flat<int64_t>(index, ScalarType::Long, "index"), index.size(0), &kernels.by_int64};
}

void throw_bad_index(int64_t num_rows) {
  check_index(false, "index must lie in [0, ", num_rows, ")");
}

void gather(const Tensor& out, const Tensor& x, const Tensor& index) {
  const RowsView from = rows_view(x, "x"), to = writable_rows(out, "out");
  const IndexView at = index_view(index);
  check(to.num_rows == at.size && to.width == from.width, "out must be of shape (", at.size, ", ",
        from.width, "), got (", to.num_rows, ", ", to.width, ")");
  GatherCall call{from.data, from.num_rows, from.stride, to.data,
                  to.stride, from.width,    at.data,     at.size};
  GatherLoop loop;
  if (from.dtype == to.dtype) {
    const auto size = static_cast<int64_t>(x.element_size());
    call.x_stride *= size;
    call.out_stride *= size;
    call.width *= size;
    loop = streams(call) ? at.loops->stream : at.loops->copy;
  } else {
    loop = at.loops->convert[float_type(from.dtype, "x")][float_type(to.dtype, "out")];
  }
  const int64_t rows = rows_per_task(from.width * static_cast<int64_t>(x.element_size()));
  std::atomic<bool> valid{true};
  for_each_task((at.size + rows - 1) / rows, [&](int64_t task) {
    if (!loop(call, task * rows, std::min((task + 1) * rows, at.size))) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  if (!valid) throw_bad_index(from.num_rows);
}

// Calls f with the index as an array of its own type.
template <class F>
auto with_index(const Tensor& index, const F& f) {
  return index.scalar_type() == ScalarType::Int ? f(static_cast<const int32_t*>(index.data_ptr()))
                                                : f(static_cast<const int64_t*>(index.data_ptr()));
}

// Cuts [0, num_rows) where a sample of the index suggests ranges of equally many entries.
std::vector<int64_t> destination_ptr(const Tensor& index, int64_t num_rows, int64_t num_ranges) {
  constexpr int64_t kSample = 64;  // for each range
  const int64_t size = index.size(0), num_samples = num_ranges * kSample;
  std::vector<int64_t> sample(num_samples);
  for (int64_t i = 0; i < num_samples; ++i) {
    const int64_t k = size / num_samples * i + size % num_samples * i / num_samples;
    sample[i] = with_index(index, [&](const auto* at) { return static_cast<int64_t>(at[k]); });
  }
  std::sort(sample.begin(), sample.end());
  std::vector<int64_t> ptr{0};
  for (int64_t range = 1; range < num_ranges; ++range) ptr.push_back(sample[range * kSample]);
  ptr.push_back(num_rows);
  return ptr;
}

// Each range of destinations has one thread, which takes its entries in order: sums do not depend
// on the number of threads.
void scatter_in_order(ScatterLoop loop, const ScatterCall& call, const Tensor& index,
                      int64_t num_rows, int64_t num_ranges) {
  if (num_ranges == 1) return loop(call, 0, num_rows);
  const std::vector<int64_t> ptr = destination_ptr(index, num_rows, num_ranges);
  for_each_task(num_ranges, [&](int64_t range) { loop(call, ptr[range], ptr[range + 1]); });
}

// Entries with one destination stand side by side, so that their sum needs rounding once. Entries
// of one destination belong to one range.
void scatter_sorted(SortedLoop loop, const ScatterCall& call, const Tensor& index,
                    int64_t num_ranges) {
  const int64_t size = call.num_index;
  std::vector<int64_t> order(size), ptr(num_ranges + 1, size);
  std::iota(order.begin(), order.end(), int64_t{0});
  with_index(index, [&](const auto* at) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return at[a] < at[b]; });
    for (int64_t range = 0; range < num_ranges; ++range) {
      int64_t cut = size * range / num_ranges;
      while (cut > 0 && cut < size && at[order[cut]] == at[order[cut - 1]]) ++cut;
      ptr[range] = cut;
    }
  });
  for_each_task(num_ranges, [&](int64_t range) {
    loop(call, order.data(), ptr[range], ptr[range + 1]);
  });
}

}  // namespace

Tensor gather_rows(Tensor x, Tensor index, std::optional<ScalarType> dtype) {
  check(x.dim() == 2, "x must have two dimensions, got ", x.dim());
  check(index.dim() == 1, "index must have one dimension, got ", index.dim());
  const Tensor out = new_rows(x, index.size(0), x.size(1), dtype.value_or(x.scalar_type()));
  gather(out, x, index);
  return out;
}

void gather_rows_into(Tensor out, Tensor x, Tensor index) { gather(out, x, index); }

void scatter_add_rows(Tensor out, Tensor index, Tensor rows) {
  const RowsView to = writable_rows(out, "out"), from = rows_view(rows, "rows");
  const IndexView at = index_view(index);
  check(from.dtype == to.dtype, "rows must have the dtype of out");
  check(from.num_rows == at.size && from.width == to.width, "rows must be of shape (", at.size,
        ", ", to.width, "), got (", from.num_rows, ", ", from.width, ")");
  const FloatType dtype = float_type(to.dtype, "out");
  std::atomic<bool> valid{true};
  for_each_range(at.size, 1 << 16, [&](int64_t begin, int64_t end) {
    if (!at.loops->in_range(at.data, begin, end, to.num_rows)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  if (!valid) throw_bad_index(to.num_rows);
  const ScatterCall call{to.data,    to.stride, from.data, from.stride,
                         from.width, at.data,   at.size};
  const int64_t row_bytes = from.width * static_cast<int64_t>(rows.element_size());
  const int64_t worth = at.size / rows_per_task(row_bytes) + 1;
  const int64_t num_ranges = std::min<int64_t>(torch::stable::get_num_threads(), worth);
  if (dtype < 2) {
    scatter_in_order(at.loops->scatter_add[dtype], call, index, to.num_rows, num_ranges);
  } else {
    scatter_sorted(at.loops->add_sorted[dtype - 2], call, index, num_ranges);
  }
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("gather_rows(Tensor x, Tensor index, ScalarType? dtype=None) -> Tensor");
  m.def("gather_rows_into(Tensor(a!) out, Tensor x, Tensor index) -> ()");
  m.def("scatter_add_rows(Tensor(a!) out, Tensor index, Tensor rows) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("gather_rows", TORCH_BOX(&gnn_dist::gather_rows));
  m.impl("gather_rows_into", TORCH_BOX(&gnn_dist::gather_rows_into));
  m.impl("scatter_add_rows", TORCH_BOX(&gnn_dist::scatter_add_rows));
}
