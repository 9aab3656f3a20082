// Aggregation: a row of the result stays in registers while its sources stream past.
#include "../columns.h"
#include "../simd.h"
#include "../spmm.h"

namespace GNN_DIST_ISA {

using gnn_dist::Columns;
using gnn_dist::RowPiece;
using gnn_dist::ShareCall;
using gnn_dist::SpmmCall;

constexpr int kMaxVectors = gnn_dist::max_vectors(kVectorBytes);

// Vectors of W elements that cover `width` columns; the last one ends at the last column and may
// overlap the one before it.
template <int W, int NV>
struct Cover {
  int64_t last;
  explicit Cover(int64_t width) : last(width - W) {}
  int64_t offset(int i) const { return i + 1 < NV ? i * W : last; }
};

template <class S>
GNN_DIST_INLINE accumulate_t<S> coefficient(const SpmmCall& call, int64_t entry, int32_t column) {
  using A = accumulate_t<S>;
  A value = 1;
  if (call.weight != nullptr) {
    const int64_t at = call.position != nullptr ? call.position[entry] : entry;
    value = static_cast<const A*>(call.weight)[at * call.weight_stride + call.head];
  }
  if (call.src_scale != nullptr) value *= static_cast<const A*>(call.src_scale)[column];
  return value;
}

template <class S, int W, int NV, bool kPlain>
struct Sum {
  using A = accumulate_t<S>;
  static constexpr bool kTwoSources = false;
  static constexpr bool kLooksAgain = false;
  vec<A, W> value[NV];

  GNN_DIST_INLINE void begin(const SpmmCall&, Columns, Cover<W, NV>, int64_t) {
    for (int i = 0; i < NV; ++i) value[i] = vec<A, W>{};
  }
  GNN_DIST_INLINE void take(const SpmmCall& call, const S* x, Cover<W, NV> cover, int64_t entry,
                            int32_t column) {
    if constexpr (kPlain) {
      for (int i = 0; i < NV; ++i) value[i] += load<S, W>(x + cover.offset(i));
    } else {
      const A c = coefficient<S>(call, entry, column);
      for (int i = 0; i < NV; ++i) value[i] += c * load<S, W>(x + cover.offset(i));
    }
  }
  GNN_DIST_INLINE void save(Cover<W, NV> cover, void* partial) const {
    for (int i = 0; i < NV; ++i) {
      store_plain<A, W>(static_cast<A*>(partial) + cover.offset(i), value[i]);
    }
  }
  GNN_DIST_INLINE void merge(Cover<W, NV> cover, const void* partial) {
    for (int i = 0; i < NV; ++i) {
      value[i] += load_plain<A, W>(static_cast<const A*>(partial) + cover.offset(i));
    }
  }
  GNN_DIST_INLINE void finish(const SpmmCall& call, Columns columns, Cover<W, NV> cover,
                              int64_t row) {
    S* out = static_cast<S*>(call.out) + row * call.out_stride + columns.first;
    if (call.dst_scale != nullptr) {
      const A scale = static_cast<const A*>(call.dst_scale)[row];
      for (int i = 0; i < NV; ++i) value[i] *= scale;
    }
    // All loads come before the first store: the last two vectors may overlap.
    if (call.add) {
      for (int i = 0; i < NV; ++i) value[i] += load<S, W>(out + cover.offset(i));
    }
    for (int i = 0; i < NV; ++i) store<S, W>(out + cover.offset(i), value[i]);
  }
};

// Sums of bfloat16, which are the upper halves of floats: of W elements, read as W / 2 words, those
// at even columns are made floats by a shift and those at odd columns by a mask, without a shuffle.
template <int W, int NV, bool kPlain>
struct PairSum {
  static constexpr bool kTwoSources = false;
  static constexpr bool kLooksAgain = false;
  static constexpr int kHalf = W / 2;
  static constexpr uint32_t kUpper = 0xffff0000;
  using Floats = vec<float, kHalf>;
  using Words = vec<uint32_t, kHalf>;
  Floats even[NV], odd[NV];

  static GNN_DIST_INLINE Words words(const bf16* from) {
    Words out;
    __builtin_memcpy(&out, from, sizeof out);
    return out;
  }
  static GNN_DIST_INLINE Floats even_of(Words w) { return bit_cast<Floats>(w << 16); }
  static GNN_DIST_INLINE Floats odd_of(Words w) { return bit_cast<Floats>(w & kUpper); }

  GNN_DIST_INLINE void begin(const SpmmCall&, Columns, Cover<W, NV>, int64_t) {
    for (int i = 0; i < NV; ++i) even[i] = odd[i] = Floats{};
  }
  GNN_DIST_INLINE void take(const SpmmCall& call, const bf16* x, Cover<W, NV> cover, int64_t entry,
                            int32_t column) {
    float c = 1;
    if constexpr (!kPlain) c = coefficient<bf16>(call, entry, column);
    for (int i = 0; i < NV; ++i) {
      const Words w = words(x + cover.offset(i));
      even[i] += kPlain ? even_of(w) : c * even_of(w);
      odd[i] += kPlain ? odd_of(w) : c * odd_of(w);
    }
  }
  GNN_DIST_INLINE void save(Cover<W, NV>, void* partial) const {
    __builtin_memcpy(partial, even, sizeof even);
    __builtin_memcpy(static_cast<char*>(partial) + sizeof even, odd, sizeof odd);
  }
  GNN_DIST_INLINE void merge(Cover<W, NV>, const void* partial) {
    for (int i = 0; i < NV; ++i) {
      even[i] += load_plain<float, kHalf>(static_cast<const float*>(partial) + i * kHalf);
      odd[i] += load_plain<float, kHalf>(static_cast<const float*>(partial) + (NV + i) * kHalf);
    }
  }
  GNN_DIST_INLINE void finish(const SpmmCall& call, Columns columns, Cover<W, NV> cover,
                              int64_t row) {
    bf16* out = static_cast<bf16*>(call.out) + row * call.out_stride + columns.first;
    const float scale =
        call.dst_scale != nullptr ? static_cast<const float*>(call.dst_scale)[row] : 1.0f;
    for (int i = 0; i < NV; ++i) {
      even[i] *= scale;
      odd[i] *= scale;
    }
    // All loads come before the first store: the last two vectors may overlap.
    for (int i = 0; i < NV && call.add; ++i) {
      const Words w = words(out + cover.offset(i));
      even[i] += even_of(w);
      odd[i] += odd_of(w);
    }
    for (int i = 0; i < NV; ++i) {
      const Words w = (rounded(even[i]) >> 16) | (rounded(odd[i]) & kUpper);
      __builtin_memcpy(out + cover.offset(i), &w, sizeof w);
    }
  }

 private:
  // The number that rounds to nearest, ties to even, when its lower half is dropped.
  static GNN_DIST_INLINE Words rounded(Floats value) {
    const Words bits = bit_cast<Words>(value);
    return value == value ? bits + 0x7fff + ((bits >> 16) & 1) : bits | 0x400000;
  }
};

// Largest or smallest value, and how many entries reach it; zero and zero where there are none.
// Goes on from what out and count hold. A NaN beats everything: whether a row may hold one is seen
// from the sum of all its elements, and such a row, which is rare, is walked again.
template <class S, int W, int NV, bool kLargest>
struct Extreme {
  using A = accumulate_t<S>;
  using I = int_t<A>;
  static constexpr bool kTwoSources = false;
  static constexpr bool kLooksAgain = true;
  static constexpr A kWorst = kLargest ? -__builtin_inf() : __builtin_inf();
  vec<A, W> value[NV];
  vec<I, W> count[NV];
  vec<A, W> total;

  GNN_DIST_INLINE void begin(const SpmmCall&, Columns, Cover<W, NV>, int64_t) {
    total = vec<A, W>{};
    for (int i = 0; i < NV; ++i) {
      value[i] = broadcast<A, W>(kWorst);
      count[i] = vec<I, W>{};
    }
  }
  // A NaN in v is not seen; one that is there stays.
  GNN_DIST_INLINE void meet(int i, vec<A, W> v, vec<I, W> number) {
    const auto better = kLargest ? v > value[i] : v < value[i];
    count[i] = v == value[i] ? count[i] + number : count[i];
    count[i] = better ? number : count[i];
    value[i] = better ? v : value[i];
  }
  GNN_DIST_INLINE void admit_nan(int i, vec<A, W> v) {
    value[i] = v == v ? value[i] : v;
    count[i] = v == v ? count[i] : broadcast<I, W>(1);
  }
  GNN_DIST_INLINE void take(const SpmmCall&, const S* x, Cover<W, NV> cover, int64_t, int32_t) {
    auto sum = vec<A, W>{};
    for (int i = 0; i < NV; ++i) {
      const auto v = load<S, W>(x + cover.offset(i));
      meet(i, v, broadcast<I, W>(1));
      sum += v;
    }
    total += sum;
  }
  GNN_DIST_INLINE bool may_hold_nan() const {
    const A sum = horizontal_sum<A, W>(total);
    return sum != sum;
  }
  GNN_DIST_INLINE void save(Cover<W, NV> cover, void* partial) const {
    auto* values = static_cast<A*>(partial);
    auto* counts = reinterpret_cast<I*>(values + kMaxVectors * full_width<A>);
    for (int i = 0; i < NV; ++i) {
      store_plain<A, W>(values + cover.offset(i), value[i]);
      store_plain<I, W>(counts + cover.offset(i), count[i]);
    }
  }
  GNN_DIST_INLINE void merge(Cover<W, NV> cover, const void* partial) {
    const auto* values = static_cast<const A*>(partial);
    const auto* counts = reinterpret_cast<const I*>(values + kMaxVectors * full_width<A>);
    for (int i = 0; i < NV; ++i) {
      const auto v = load_plain<A, W>(values + cover.offset(i));
      meet(i, v, load_plain<I, W>(counts + cover.offset(i)));
      admit_nan(i, v);
    }
  }
  GNN_DIST_INLINE void finish(const SpmmCall& call, Columns columns, Cover<W, NV> cover,
                              int64_t row) {
    S* out = static_cast<S*>(call.out) + row * call.out_stride + columns.first;
    int32_t* out_count = call.count + row * call.out_stride + columns.first;
    // All loads come before the first store: the last two vectors may overlap.
    for (int i = 0; i < NV && call.add; ++i) {
      const auto number =
          convert<I, int32_t, W>(load_plain<int32_t, W>(out_count + cover.offset(i)));
      const auto there = load<S, W>(out + cover.offset(i));
      const auto v = number != 0 ? there : broadcast<A, W>(kWorst);
      meet(i, v, number);
      admit_nan(i, v);
    }
    for (int i = 0; i < NV; ++i) {
      store<S, W>(out + cover.offset(i), count[i] != 0 ? value[i] : vec<A, W>{});
      store_plain<int32_t, W>(out_count + cover.offset(i), convert<int32_t, I, W>(count[i]));
    }
  }
};

// The second look at a row.
template <class S, int W, int NV, class Values>
struct AdmitNans {
  static constexpr bool kTwoSources = false;
  Values& to;

  GNN_DIST_INLINE void take(const SpmmCall&, const S* x, Cover<W, NV> cover, int64_t, int32_t) {
    for (int i = 0; i < NV; ++i) to.admit_nan(i, load<S, W>(x + cover.offset(i)));
  }
};

// The sum of `second` over the entries whose x equals the row's own value.
template <class S, int W, int NV>
struct WhereEqual {
  using A = accumulate_t<S>;
  static constexpr bool kTwoSources = true;
  static constexpr bool kLooksAgain = false;
  vec<A, W> own[NV];
  Sum<S, W, NV, true> sum;

  GNN_DIST_INLINE void begin(const SpmmCall& call, Columns columns, Cover<W, NV> cover,
                             int64_t row) {
    const S* from = static_cast<const S*>(call.own) + row * call.own_stride + columns.first;
    for (int i = 0; i < NV; ++i) own[i] = load<S, W>(from + cover.offset(i));
    sum.begin(call, columns, cover, row);
  }
  GNN_DIST_INLINE void take(const SpmmCall& call, const S* x, Cover<W, NV> cover, int64_t,
                            int32_t) {
    const S* second = static_cast<const S*>(call.second) + (x - static_cast<const S*>(call.x));
    for (int i = 0; i < NV; ++i) {
      const auto part = load<S, W>(second + cover.offset(i));
      const auto equal = load<S, W>(x + cover.offset(i)) == own[i];
      sum.value[i] = equal ? sum.value[i] + part : sum.value[i];
    }
  }
  GNN_DIST_INLINE void save(Cover<W, NV> cover, void* partial) const { sum.save(cover, partial); }
  GNN_DIST_INLINE void merge(Cover<W, NV> cover, const void* partial) {
    sum.merge(cover, partial);
  }
  GNN_DIST_INLINE void finish(const SpmmCall& call, Columns columns, Cover<W, NV> cover,
                              int64_t row) {
    sum.finish(call, columns, cover, row);
  }
};

// Asks for a row to come into the second-level cache, which has room for many rows and takes more
// requests at a time than the first. A column out of range is harmless here and found in its turn.
template <class S, int W, int NV>
GNN_DIST_INLINE void prefetch_row(const S* x, int64_t column, int64_t stride, int64_t width) {
  constexpr int kLines = (NV * W * static_cast<int>(sizeof(S)) + 63) / 64;
  const auto row = reinterpret_cast<uintptr_t>(x) +
                   static_cast<uintptr_t>(column * stride) * sizeof(S);
  const auto last = row + static_cast<uintptr_t>(width) * sizeof(S) - 1;
  for (int i = 0; i + 1 < kLines; ++i) {
    __builtin_prefetch(reinterpret_cast<const void*>(row + 64 * i), 0, 1);
  }
  if (kLines == 1) __builtin_prefetch(reinterpret_cast<const void*>(row), 0, 1);
  // The last line, and one more where rows do not begin at a line.
  if (kLines > 1 && (stride * sizeof(S)) % 64 != 0) {
    __builtin_prefetch(reinterpret_cast<const void*>(row + 64 * (kLines - 1)), 0, 1);
  }
  __builtin_prefetch(reinterpret_cast<const void*>(last), 0, 1);
}

// Takes the entries [begin, end) in order.
template <class S, int W, int NV, class Reducer>
GNN_DIST_INLINE bool walk(const SpmmCall& call, Columns columns, int64_t begin, int64_t end,
                          Reducer& reducer) {
  const Cover<W, NV> cover(columns.width);
  const S* x = static_cast<const S*>(call.x) + columns.first;
  const int32_t* indices = call.indices;
  const int64_t stride = call.x_stride, last_ahead = call.nnz - call.ahead;
  const auto num_cols = static_cast<uint64_t>(call.num_cols);
  for (int64_t entry = begin; entry < end; ++entry) {
    if (entry < last_ahead) {
      const int64_t column = indices[entry + call.ahead];
      prefetch_row<S, W, NV>(x, column, stride, columns.width);
      if constexpr (Reducer::kTwoSources) {
        const S* second = static_cast<const S*>(call.second) + columns.first;
        prefetch_row<S, W, NV>(second, column, stride, columns.width);
      }
    }
    const int32_t column = indices[entry];
    if (__builtin_expect(static_cast<uint64_t>(static_cast<int64_t>(column)) >= num_cols, 0)) {
      return false;
    }
    reducer.take(call, x + column * stride, cover, entry, column);
  }
  return true;
}

// Reduces the entries [begin, end).
template <class S, int W, int NV, class Reducer>
GNN_DIST_INLINE bool reduce(const SpmmCall& call, Columns columns, int64_t begin, int64_t end,
                            Reducer& reducer) {
  if (!walk<S, W, NV>(call, columns, begin, end, reducer)) return false;
  if constexpr (Reducer::kLooksAgain) {
    if (__builtin_expect(reducer.may_hold_nan(), 0)) {
      AdmitNans<S, W, NV, Reducer> nans{reducer};
      walk<S, W, NV>(call, columns, begin, end, nans);
    }
  }
  return true;
}

template <class S, int W, int NV, class Reducer>
bool rows(const SpmmCall& call, Columns columns, int64_t row_begin, int64_t row_end) {
  const Cover<W, NV> cover(columns.width);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const int64_t begin = call.indptr[row], end = call.indptr[row + 1];
    if (end - begin > gnn_dist::kHubEntries) continue;  // done in pieces
    // Such a row stays as it is (an extreme that has met no entry yet is set to zero).
    if (begin == end && call.add && !Reducer::kLooksAgain) continue;
    Reducer reducer;
    reducer.begin(call, columns, cover, row);
    if (!reduce<S, W, NV>(call, columns, begin, end, reducer)) return false;
    reducer.finish(call, columns, cover, row);
  }
  return true;
}

template <class S, int W, int NV, class Reducer>
bool piece(const SpmmCall& call, Columns columns, RowPiece at, void* partial) {
  const Cover<W, NV> cover(columns.width);
  Reducer reducer;
  reducer.begin(call, columns, cover, at.row);
  if (!reduce<S, W, NV>(call, columns, at.begin, at.end, reducer)) return false;
  reducer.save(cover, partial);
  return true;
}

template <class S, int W, int NV, class Reducer>
void finish(const SpmmCall& call, Columns columns, int64_t row, const void* partials,
            int64_t num_pieces) {
  const Cover<W, NV> cover(columns.width);
  Reducer reducer;
  reducer.begin(call, columns, cover, row);
  for (int64_t i = 0; i < num_pieces; ++i) {
    reducer.merge(cover, static_cast<const char*>(partials) + i * gnn_dist::kPartialBytes);
  }
  reducer.finish(call, columns, cover, row);
}

// Which reducer: a plain sum has no factors.
template <int kReduce>
struct ReducerOf {
  template <class S, int W, int NV, class F>
  static GNN_DIST_INLINE auto with(const SpmmCall&, F f) {
    return f.template operator()<S, W, NV, Extreme<S, W, NV, kReduce == gnn_dist::kMax>>();
  }
};
template <>
struct ReducerOf<gnn_dist::kSum> {
  template <class S, int W, int NV, class F>
  static GNN_DIST_INLINE auto with(const SpmmCall& call, F f) {
    if (call.weight == nullptr && call.src_scale == nullptr) {
      return f.template operator()<S, W, NV, Sum<S, W, NV, true>>();
    }
    return f.template operator()<S, W, NV, Sum<S, W, NV, false>>();
  }
};

template <>
struct ReducerOf<gnn_dist::kWhereEqual> {
  template <class S, int W, int NV, class F>
  static GNN_DIST_INLINE auto with(const SpmmCall&, F f) {
    return f.template operator()<S, W, NV, WhereEqual<S, W, NV>>();
  }
};

struct ReducerOfPairs {
  template <int W, int NV, class F>
  static GNN_DIST_INLINE auto with(const SpmmCall& call, F f) {
    if (call.weight == nullptr && call.src_scale == nullptr) {
      return f.template operator()<bf16, W, NV, PairSum<W, NV, true>>();
    }
    return f.template operator()<bf16, W, NV, PairSum<W, NV, false>>();
  }
};

// Calls f with the vectors of two-byte pairs that cover a width of at least one of them.
template <class F>
GNN_DIST_INLINE auto with_pairs(const SpmmCall& call, int64_t width, F f) {
  constexpr int kPair = 2 * full_width<float>;
  switch ((width + kPair - 1) / kPair) {
    case 1: return ReducerOfPairs::with<kPair, 1>(call, f);
    case 2: return ReducerOfPairs::with<kPair, 2>(call, f);
    case 3: return ReducerOfPairs::with<kPair, 3>(call, f);
    case 4: return ReducerOfPairs::with<kPair, 4>(call, f);
    case 5: return ReducerOfPairs::with<kPair, 5>(call, f);
    case 6: return ReducerOfPairs::with<kPair, 6>(call, f);
    case 7: return ReducerOfPairs::with<kPair, 7>(call, f);
    default: return ReducerOfPairs::with<kPair, 8>(call, f);
  }
}

// Calls f with the vectors that cover a width.
template <class S, class Which, class F>
GNN_DIST_INLINE auto with_cover(const SpmmCall& call, int64_t width, F f) {
  constexpr int kFull = full_width<accumulate_t<S>>;
  if constexpr (is_same<S, bf16> && is_same<Which, ReducerOf<gnn_dist::kSum>>) {
    if (width >= 2 * kFull) return with_pairs(call, width, f);
  }
  if (width >= kFull) {
    const int64_t count = (width + kFull - 1) / kFull;
    if constexpr (kMaxVectors > 8) {
      switch (count) {
        case 9: return Which::template with<S, kFull, 9>(call, f);
        case 10: return Which::template with<S, kFull, 10>(call, f);
        case 11: return Which::template with<S, kFull, 11>(call, f);
        case 12: return Which::template with<S, kFull, 12>(call, f);
        case 13: return Which::template with<S, kFull, 13>(call, f);
        case 14: return Which::template with<S, kFull, 14>(call, f);
        case 15: return Which::template with<S, kFull, 15>(call, f);
        case 16: return Which::template with<S, kFull, 16>(call, f);
        default: break;
      }
    }
    switch (count) {
      case 1: return Which::template with<S, kFull, 1>(call, f);
      case 2: return Which::template with<S, kFull, 2>(call, f);
      case 3: return Which::template with<S, kFull, 3>(call, f);
      case 4: return Which::template with<S, kFull, 4>(call, f);
      case 5: return Which::template with<S, kFull, 5>(call, f);
      case 6: return Which::template with<S, kFull, 6>(call, f);
      case 7: return Which::template with<S, kFull, 7>(call, f);
      default: return Which::template with<S, kFull, 8>(call, f);
    }
  }
  if constexpr (kFull > 8) {
    if (width == 8) return Which::template with<S, 8, 1>(call, f);
    if (width > 8) return Which::template with<S, 8, 2>(call, f);
  }
  if constexpr (kFull > 4) {
    if (width == 4) return Which::template with<S, 4, 1>(call, f);
    if (width > 4) return Which::template with<S, 4, 2>(call, f);
  }
  if (width == 1) return Which::template with<S, 1, 1>(call, f);
  if (width == 2) return Which::template with<S, 1, 2>(call, f);
  return Which::template with<S, 1, 3>(call, f);
}

struct CallRows {
  const SpmmCall& call;
  Columns columns;
  int64_t row_begin, row_end;
  template <class S, int W, int NV, class Reducer>
  GNN_DIST_INLINE bool operator()() const {
    return rows<S, W, NV, Reducer>(call, columns, row_begin, row_end);
  }
};

struct CallPiece {
  const SpmmCall& call;
  Columns columns;
  RowPiece at;
  void* partial;
  template <class S, int W, int NV, class Reducer>
  GNN_DIST_INLINE bool operator()() const {
    return piece<S, W, NV, Reducer>(call, columns, at, partial);
  }
};

struct CallFinish {
  const SpmmCall& call;
  Columns columns;
  int64_t row;
  const void* partials;
  int64_t num_pieces;
  template <class S, int W, int NV, class Reducer>
  GNN_DIST_INLINE void operator()() const {
    finish<S, W, NV, Reducer>(call, columns, row, partials, num_pieces);
  }
};

template <class S, int kReduce>
bool any_rows(const SpmmCall& call, Columns columns, int64_t begin, int64_t end) {
  return with_cover<S, ReducerOf<kReduce>>(call, columns.width,
                                              CallRows{call, columns, begin, end});
}

template <class S, int kReduce>
bool any_piece(const SpmmCall& call, Columns columns, RowPiece at, void* partial) {
  return with_cover<S, ReducerOf<kReduce>>(call, columns.width,
                                           CallPiece{call, columns, at, partial});
}

template <class S, int kReduce>
void any_finish(const SpmmCall& call, Columns columns, int64_t row, const void* partials,
                int64_t num_pieces) {
  with_cover<S, ReducerOf<kReduce>>(call, columns.width,
                                       CallFinish{call, columns, row, partials, num_pieces});
}

template <class S, int kReduce>
constexpr gnn_dist::SpmmLoops loops = {any_rows<S, kReduce>, any_piece<S, kReduce>,
                                       any_finish<S, kReduce>};

template <class S>
struct Share {
  const S* grad;
  const int32_t* count;
  S* out;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    using A = accumulate_t<S>;
    const auto number = convert<A, int32_t, W>(load_plain<int32_t, W>(count + column));
    store<S, W>(out + column, load<S, W>(grad + column) / number);
  }
};

template <class S>
void share(const ShareCall& call, int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const S* grad = static_cast<const S*>(call.grad) + row * call.grad_stride;
    const int32_t* count = call.count + row * call.count_stride;
    S* out = static_cast<S*>(call.out) + row * call.width;
    cover_columns<full_width<accumulate_t<S>>>(call.width, Share<S>{grad, count, out});
  }
}

#define GNN_DIST_LOOPS(S)                                      \
  {loops<S, gnn_dist::kSum>, loops<S, gnn_dist::kMax>, \
   loops<S, gnn_dist::kMin>, loops<S, gnn_dist::kWhereEqual>}

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(SpmmKernels, spmm) = {
    {GNN_DIST_LOOPS(float), GNN_DIST_LOOPS(double), GNN_DIST_LOOPS(bf16), GNN_DIST_LOOPS(f16)},
    {share<float>, share<double>, share<bf16>, share<f16>}};
}  // namespace gnn_dist
