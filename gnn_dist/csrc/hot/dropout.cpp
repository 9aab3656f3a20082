// Dropout by id, fused with what stands before it, and plain draws.
#include "../dropout.h"

#include "../columns.h"
#include "../simd.h"
#include "../simd_draws.h"

namespace GNN_DIST_ISA {

using gnn_dist::DropoutCall;

// One where a column is kept, zero where it is dropped. A factor, so that what is not finite shows.
template <class A, int W>
GNN_DIST_INLINE vec<A, W> keep_factor(uint64_t row, int64_t column, uint32_t limit) {
  const auto kept = draw<W>(row, column) > limit;
  if constexpr (W == 1) {
    return kept ? A{1} : A{0};
  } else if constexpr (sizeof(A) == 4) {
    return kept ? broadcast<A, W>(1) : vec<A, W>{};
  } else {
    const auto wide = __builtin_convertvector(kept, vec<int64_t, W>);
    return wide ? broadcast<A, W>(1) : vec<A, W>{};
  }
}

template <class S>
struct ForwardStep {
  using A = accumulate_t<S>;
  const DropoutCall& call;
  const S* x;
  S* out;
  uint64_t row;
  A scale;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    auto value = load<S, W>(x + column);
    if (call.bias != nullptr) {
      value += load_plain<A, W>(static_cast<const A*>(call.bias) + column);
    }
    if (call.relu) value = value < A{0} ? vec<A, W>{} : value;  // a NaN stays
    value *= scale;
    if (call.draws) value *= keep_factor<A, W>(row, column, call.limit);
    store<S, W>(out + column, value);
  }
};

template <class S>
void forward(const DropoutCall& call, int64_t begin, int64_t end) {
  using A = accumulate_t<S>;
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t row =
        call.draws ? gnn_dist::row_key(call.key, static_cast<uint64_t>(call.ids[i])) : 0;
    cover_columns<full_width<A>>(
        call.width,
        ForwardStep<S>{call, static_cast<const S*>(call.x) + i * call.x_stride,
                       static_cast<S*>(call.out) + i * call.out_stride, row,
                       static_cast<A>(call.scale)});
  }
}

template <class S>
struct BackwardStep {
  using A = accumulate_t<S>;
  const DropoutCall& call;
  const S* grad;
  const S* result;
  S* out;
  uint64_t row;
  A scale;
  A* sum;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    auto value = load<S, W>(grad + column) * scale;
    if (call.relu) {
      // Above zero: kept, and positive before. As PyTorch's ReLU, a NaN lets the gradient through.
      value = load<S, W>(result + column) <= A{0} ? vec<A, W>{} : value;
    } else if (call.draws) {
      value *= keep_factor<A, W>(row, column, call.limit);
    }
    store<S, W>(out + column, value);
    if (sum != nullptr) {
      store_plain<A, W>(sum + column, load_plain<A, W>(sum + column) + value);
    }
  }
};

template <class S>
void backward(const DropoutCall& call, int64_t begin, int64_t end, void* column_sum) {
  using A = accumulate_t<S>;
  auto* sum = static_cast<A*>(column_sum);
  for (int64_t column = 0; sum != nullptr && column < call.width; ++column) sum[column] = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t row = call.draws && !call.relu
                             ? gnn_dist::row_key(call.key, static_cast<uint64_t>(call.ids[i]))
                             : 0;
    const S* result =
        call.relu ? static_cast<const S*>(call.result) + i * call.result_stride : nullptr;
    cover_columns<full_width<A>>(
        call.width,
        BackwardStep<S>{call, static_cast<const S*>(call.x) + i * call.x_stride, result,
                        static_cast<S*>(call.out) + i * call.out_stride, row,
                        static_cast<A>(call.scale), sum});
  }
}

// In float64: there may be very many blocks.
template <class S>
void add_blocks(const void* column_sum, int64_t num_blocks, int64_t width, int64_t begin,
                int64_t end, void* sum) {
  using A = accumulate_t<S>;
  constexpr int64_t kColumns = 64;
  for (int64_t first = begin; first < end; first += kColumns) {
    const int64_t count = end - first < kColumns ? end - first : kColumns;
    double total[kColumns] = {};
    for (int64_t block = 0; block < num_blocks; ++block) {
      const A* from = static_cast<const A*>(column_sum) + block * width + first;
      for (int64_t i = 0; i < count; ++i) total[i] += static_cast<double>(from[i]);
    }
    for (int64_t i = 0; i < count; ++i) static_cast<A*>(sum)[first + i] = static_cast<A>(total[i]);
  }
}

struct KeepStep {
  bool* keep;
  uint64_t row;
  uint32_t limit;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    const auto kept = draw<W>(row, column) > limit;
    if constexpr (W == 1) {
      keep[column] = kept;
    } else {
      const auto bytes = convert<uint8_t, uint16_t, W>(
          __builtin_convertvector(bit_cast<vec<uint32_t, W>>(kept), vec<uint16_t, W>));
      store_plain<uint8_t, W>(reinterpret_cast<uint8_t*>(keep + column), bytes & 1);
    }
  }
};

void keep(const int64_t* ids, uint64_t key, uint32_t limit, int64_t width, int64_t begin,
          int64_t end, bool* out) {
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t row = gnn_dist::row_key(key, static_cast<uint64_t>(ids[i]));
    cover_columns<full_width<float>>(width, KeepStep{out + i * width, row, limit});
  }
}

void uniform_by_id(const int64_t* ids, uint64_t key, int64_t begin, int64_t end, double* out) {
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t drawn = gnn_dist::row_key(key, static_cast<uint64_t>(ids[i])) >> 11;
    out[i] = static_cast<double>(static_cast<int64_t>(drawn)) * 0x1p-53;
  }
}

void edge_ids(const int64_t* src, const int64_t* dst, const int64_t* copy, int64_t begin,
              int64_t end, int64_t* out) {
  for (int64_t i = begin; i < end; ++i) {
    out[i] = static_cast<int64_t>(gnn_dist::edge_id(static_cast<uint64_t>(src[i]),
                                                    static_cast<uint64_t>(dst[i]),
                                                    static_cast<uint64_t>(copy[i])));
  }
}

template <class S>
constexpr gnn_dist::DropoutLoops dropout_loops = {forward<S>, backward<S>, add_blocks<S>};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(DropoutKernels, dropout) = {
    {dropout_loops<float>, dropout_loops<double>, dropout_loops<bf16>, dropout_loops<f16>},
    GNN_DIST_ISA::keep,
    GNN_DIST_ISA::uniform_by_id,
    GNN_DIST_ISA::edge_ids};
}  // namespace gnn_dist
