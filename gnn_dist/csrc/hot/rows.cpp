// Row movement: whole rows are asked for long before they are used.
#include "../rows.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../columns.h"
#include "../simd.h"

namespace GNN_DIST_ISA {

using gnn_dist::GatherCall;
using gnn_dist::ScatterCall;

// Rows asked for ahead: enough bytes in flight to hide memory's latency, and no more than the
// first-level cache holds.
GNN_DIST_INLINE int64_t rows_ahead(int64_t row_bytes) {
  constexpr int64_t kBytesAhead = 8192;
  const int64_t ahead = kBytesAhead / (row_bytes + 1);
  return ahead < 4 ? 4 : ahead > 32 ? 32 : ahead;
}

template <class T>
GNN_DIST_INLINE void copy_ends(const char* from, char* to, int64_t num_bytes) {
  T head, tail;
  __builtin_memcpy(&head, from, sizeof head);
  __builtin_memcpy(&tail, from + num_bytes - sizeof tail, sizeof tail);
  __builtin_memcpy(to, &head, sizeof head);
  __builtin_memcpy(to + num_bytes - sizeof tail, &tail, sizeof tail);
}

// The last vector may overlap the one before it.
GNN_DIST_INLINE void copy_row(const char* from, char* to, int64_t num_bytes) {
  constexpr int kBytes = kVectorBytes;
  if (num_bytes >= kBytes) {
    for (int64_t at = 0; at + kBytes <= num_bytes; at += kBytes) {
      store_plain<char, kBytes>(to + at, load_plain<char, kBytes>(from + at));
    }
    const int64_t last = num_bytes - kBytes;
    store_plain<char, kBytes>(to + last, load_plain<char, kBytes>(from + last));
    return;
  }
  if constexpr (kBytes > 32) {
    if (num_bytes >= 32) return copy_ends<vec<char, 32>>(from, to, num_bytes);
  }
  if constexpr (kBytes > 16) {
    if (num_bytes >= 16) return copy_ends<vec<char, 16>>(from, to, num_bytes);
  }
  if (num_bytes >= 8) return copy_ends<uint64_t>(from, to, num_bytes);
  if (num_bytes >= 4) return copy_ends<uint32_t>(from, to, num_bytes);
  if (num_bytes >= 2) return copy_ends<uint16_t>(from, to, num_bytes);
  if (num_bytes == 1) *to = *from;
}

#if defined(__AVX512F__)
GNN_DIST_INLINE void stream(char* to, vec<char, 64> value) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bit_cast<__m512i>(value));
}
#elif defined(__AVX2__)
GNN_DIST_INLINE void stream(char* to, vec<char, 32> value) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bit_cast<__m256i>(value));
}
#elif defined(__SSE2__)
GNN_DIST_INLINE void stream(char* to, vec<char, 16> value) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), bit_cast<__m128i>(value));
}
#else
GNN_DIST_INLINE void stream(char* to, vec<char, 16> value) { store_plain<char, 16>(to, value); }
#endif

// Past the caches, which then need not read what is about to be overwritten: for results that the
// caches could not hold. Rows are whole cache lines.
struct StreamRow {
  using From = char;
  using To = char;
  static GNN_DIST_INLINE void move(const char* from, char* to, int64_t width) {
    for (int64_t at = 0; at < width; at += kVectorBytes) {
      stream(to + at, load_plain<char, kVectorBytes>(from + at));
    }
  }
  static GNN_DIST_INLINE void finish() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
  }
};

struct CopyRow {
  using From = char;
  using To = char;
  static GNN_DIST_INLINE void finish() {}
  static GNN_DIST_INLINE void move(const char* from, char* to, int64_t width) {
    copy_row(from, to, width);
  }
};

template <class S, class D>
struct ConvertStep {
  const S* from;
  D* to;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    const auto value = load<S, W>(from + column);
    store<D, W>(to + column, convert<accumulate_t<D>, accumulate_t<S>, W>(value));
  }
};

template <class S, class D>
struct ConvertRow {
  using From = S;
  using To = D;
  static GNN_DIST_INLINE void finish() {}
  static GNN_DIST_INLINE void move(const S* from, D* to, int64_t width) {
    constexpr int kFrom = full_width<accumulate_t<S>>, kTo = full_width<accumulate_t<D>>;
    cover_columns<(kFrom < kTo ? kFrom : kTo)>(width, ConvertStep<S, D>{from, to});
  }
};

template <class I, class Row>
bool gather(const GatherCall& call, int64_t begin, int64_t end) {
  using From = typename Row::From;
  using To = typename Row::To;
  const auto* x = static_cast<const From*>(call.x);
  auto* out = static_cast<To*>(call.out);
  const auto* index = static_cast<const I*>(call.index);
  const auto num_rows = static_cast<uint64_t>(call.num_rows);
  const int64_t row_bytes = call.width * static_cast<int64_t>(sizeof(From));
  const int64_t ahead = rows_ahead(row_bytes);
  for (int64_t k = begin; k < end; ++k) {
    if (k + ahead < call.num_index && row_bytes > 0) {
      const auto next = static_cast<uint64_t>(static_cast<int64_t>(index[k + ahead]));
      if (next < num_rows) {
        prefetch_bytes(x + static_cast<int64_t>(next) * call.x_stride, row_bytes);
      }
    }
    const auto row = static_cast<uint64_t>(static_cast<int64_t>(index[k]));
    if (__builtin_expect(row >= num_rows, 0)) return false;
    Row::move(x + static_cast<int64_t>(row) * call.x_stride, out + k * call.out_stride, call.width);
  }
  Row::finish();
  return true;
}

template <class S>
struct AddStep {
  const S* from;
  S* to;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    store<S, W>(to + column, load<S, W>(to + column) + load<S, W>(from + column));
  }
};

// Which k of a block of the index go to the rows [first, last), in order; then those rows.
template <class I, class S>
void scatter_add(const ScatterCall& call, int64_t first, int64_t last) {
  constexpr int64_t kBlock = 1024;
  int32_t taken[kBlock];
  const auto* index = static_cast<const I*>(call.index);
  const auto* rows = static_cast<const S*>(call.rows);
  auto* out = static_cast<S*>(call.out);
  const auto range = static_cast<uint64_t>(last - first);
  const int64_t row_bytes = call.width * static_cast<int64_t>(sizeof(S));
  if (row_bytes == 0) return;
  const int64_t ahead = rows_ahead(2 * row_bytes);
  for (int64_t begin = 0; begin < call.num_index; begin += kBlock) {
    const int64_t size = call.num_index - begin < kBlock ? call.num_index - begin : kBlock;
    int64_t count = 0;
    for (int64_t i = 0; i < size; ++i) {
      taken[count] = static_cast<int32_t>(i);
      count += static_cast<uint64_t>(static_cast<int64_t>(index[begin + i]) - first) < range;
    }
    for (int64_t i = 0; i < count; ++i) {
      if (i + ahead < count) {
        const int64_t next = begin + taken[i + ahead];
        prefetch_bytes(out + static_cast<int64_t>(index[next]) * call.out_stride, row_bytes);
        prefetch_bytes(rows + next * call.rows_stride, row_bytes);
      }
      const int64_t k = begin + taken[i];
      cover_columns<full_width<accumulate_t<S>>>(
          call.width, AddStep<S>{rows + k * call.rows_stride,
                                 out + static_cast<int64_t>(index[k]) * call.out_stride});
    }
  }
}

template <class I, class S>
struct AddRunStep {
  const ScatterCall& call;
  const int64_t* order;
  int64_t size;
  S* to;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    auto sum = load<S, W>(to + column);
    for (int64_t i = 0; i < size; ++i) {
      sum += load<S, W>(static_cast<const S*>(call.rows) + order[i] * call.rows_stride + column);
    }
    store<S, W>(to + column, sum);
  }
};

template <class I, class S>
void add_sorted(const ScatterCall& call, const int64_t* order, int64_t begin, int64_t end) {
  const auto* index = static_cast<const I*>(call.index);
  auto* out = static_cast<S*>(call.out);
  const int64_t row_bytes = call.width * static_cast<int64_t>(sizeof(S));
  if (row_bytes == 0) return;
  const int64_t ahead = rows_ahead(2 * row_bytes);
  for (int64_t first = begin, last; first < end; first = last) {
    const I row = index[order[first]];
    for (last = first; last < end && index[order[last]] == row; ++last) {
      if (last + ahead < end) {
        const int64_t next = order[last + ahead];
        prefetch_bytes(out + static_cast<int64_t>(index[next]) * call.out_stride, row_bytes);
        prefetch_bytes(static_cast<const S*>(call.rows) + next * call.rows_stride, row_bytes);
      }
    }
    cover_columns<full_width<float>>(
        call.width, AddRunStep<I, S>{call, order + first, last - first,
                                     out + static_cast<int64_t>(row) * call.out_stride});
  }
}

template <class I>
bool in_range(const void* index, int64_t begin, int64_t end, int64_t num_rows) {
  bool good = true;
  for (int64_t k = begin; k < end; ++k) {
    const int64_t row = static_cast<const I*>(index)[k];
    good &= static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows);
  }
  return good;
}

#define GNN_DIST_CONVERT(I, S)                                                    \
  {                                                                               \
    gather<I, ConvertRow<S, float>>, gather<I, ConvertRow<S, double>>,            \
        gather<I, ConvertRow<S, bf16>>, gather<I, ConvertRow<S, f16>>             \
  }
#define GNN_DIST_INDEXED(I)                                                       \
  {                                                                               \
    gather<I, CopyRow>, gather<I, StreamRow>,                                     \
        {GNN_DIST_CONVERT(I, float), GNN_DIST_CONVERT(I, double),                 \
         GNN_DIST_CONVERT(I, bf16), GNN_DIST_CONVERT(I, f16)},                    \
        {scatter_add<I, float>, scatter_add<I, double>},                          \
        {add_sorted<I, bf16>, add_sorted<I, f16>},                                \
        in_range<I>                                                               \
  }

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(RowKernels, rows) = {GNN_DIST_INDEXED(int64_t), GNN_DIST_INDEXED(int32_t)};
}  // namespace gnn_dist
