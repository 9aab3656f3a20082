// Entries of a row taken eight at a time, for files in hot/.
//
// Numbers per entry and head lie side by side, entry by entry: number j = entry * lanes + head. They
// are worked on in full vectors however few heads there are; rows of x in vectors that lie inside
// one head. What belongs to the walked row itself is laid out "packed": each head's vectors follow
// one another, the last one ending at the head's last column, so that it may overlap the one before.
// In a factor of an inner product the overlap is zero, lest its columns count twice.
#pragma once

#include "attention.h"
#include "draws.h"
#include "exp.h"
#include "simd.h"

namespace GNN_DIST_ISA {

using gnn_dist::AttentionCall;

constexpr int kBatch = 8;

// Hands out aligned pieces of scratch memory, or counts them where there is none yet.
struct Carver {
  char* base;
  int64_t used = 0;
  template <class T>
  T* take(int64_t count) {
    T* out = base != nullptr ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return out;
  }
};

template <class T>
GNN_DIST_INLINE void fill(T* to, int64_t count, T value) {
  for (int64_t i = 0; i < count; ++i) to[i] = value;
}

// Numbers per entry and head of a batch.
template <class A>
struct Lanes {
  static constexpr int W = full_width<A>;
  int64_t heads, lanes;
  int64_t period;  // of a pattern that repeats with the heads: lanes, at least a vector
  int64_t size;    // room for a batch

  explicit Lanes(const AttentionCall& call)
      : heads(call.heads),
        lanes(call.lanes),
        period(lanes > W ? lanes : W),
        size(kBatch * lanes > W ? kBatch * lanes : W) {}

  // to[i] = from[i % lanes] for a whole period.
  GNN_DIST_INLINE void repeat(const A* from, A* to) const {
    for (int64_t i = 0; i < period; i += lanes) copy(from, to + i);
  }
  GNN_DIST_INLINE void copy(const A* from, A* to) const {
    switch (lanes) {
      case 1: *to = *from; break;
      case 2: __builtin_memcpy(to, from, 2 * sizeof(A)); break;
      case 4: __builtin_memcpy(to, from, 4 * sizeof(A)); break;
      case 8: __builtin_memcpy(to, from, 8 * sizeof(A)); break;
      default:
        for (int64_t i = 0; i < lanes; i += 16) __builtin_memcpy(to + i, from + i, 16 * sizeof(A));
    }
  }
  // Adds up (or f) a vector's lanes that belong to one head, and gives the result to each of them.
  template <class F>
  GNN_DIST_INLINE vec<A, W> fold(vec<A, W> value, F f) const {
    if constexpr (W > 8) value = lanes <= 8 ? f(value, swap<8>(value)) : value;
    if constexpr (W > 4) value = lanes <= 4 ? f(value, swap<4>(value)) : value;
    if constexpr (W > 2) value = lanes <= 2 ? f(value, swap<2>(value)) : value;
    return lanes <= 1 ? f(value, swap<1>(value)) : value;
  }
  template <int kStep>
  static GNN_DIST_INLINE vec<A, W> swap(vec<A, W> value) {
    vec<int_t<A>, W> at;
    for (int i = 0; i < W; ++i) at[i] = i ^ kStep;
    return __builtin_shuffle(value, at);
  }
  // Sums of a period, folded.
  GNN_DIST_INLINE void fold_sums(A* sums) const {
    for (int64_t i = 0; i < period; i += W) {
      const auto sum = fold(load_plain<A, W>(sums + i), [](auto a, auto b) { return a + b; });
      store_plain<A, W>(sums + i, sum);
    }
  }
  // The vector at j, with zeros for entries that a batch of `count` does not have.
  GNN_DIST_INLINE vec<A, W> only(vec<A, W> value, int64_t j, int64_t count) const {
    using I = int_t<A>;
    vec<I, W> at;
    for (int i = 0; i < W; ++i) at[i] = i;
    return at < static_cast<I>(count * lanes - j) ? value : vec<A, W>{};
  }
};

template <class A, int W>
GNN_DIST_INLINE vec<A, W> slope_of(vec<A, W> z, A slope) {
  return z > A{0} ? broadcast<A, W>(A{1}) : broadcast<A, W>(slope);
}

template <class A>
constexpr A infinity = static_cast<A>(__builtin_inf());

// The softmax of a row so far: its largest score and the sum of exponentials, for each head.
template <class A>
struct Online {
  static constexpr int W = full_width<A>;
  A *largest, *total;  // a period each, side by side

  GNN_DIST_INLINE void clear(const Lanes<A>& lanes) {
    fill(largest, lanes.period, -infinity<A>);
    fill(total, lanes.period, A{0});
  }
  // Turns a batch's scores into exp(score - largest); rows added up so far need `factor`.
  GNN_DIST_INLINE void take(const Lanes<A>& lanes, int count, A* scores, A* factor) {
    const int64_t filled = count * lanes.lanes;
    fill(scores + filled, (filled + W - 1) / W * W - filled, -infinity<A>);
    for (int64_t first = 0; first < lanes.period; first += W) {
      const auto old = load_plain<A, W>(largest + first);
      auto most = old;
      for (int64_t j = first; j < filled; j += lanes.period) {
        const auto score = load_plain<A, W>(scores + j);
        most = score > most ? score : most;
      }
      most = lanes.fold(most, [](auto a, auto b) { return a > b ? a : b; });
      // With nothing but -infinity so far, the difference to it would not be a number.
      const auto from = most == -infinity<A> ? vec<A, W>{} : most;
      auto sum = vec<A, W>{};
      for (int64_t j = first; j < filled; j += lanes.period) {
        const auto power = exponential<A, W>(load_plain<A, W>(scores + j) - from);
        store_plain<A, W>(scores + j, power);
        sum += power;
      }
      rescale(first, most, from, lanes.fold(sum, [](auto a, auto b) { return a + b; }), factor);
    }
  }
  // Goes on from another part of the row; `factor` is for this one, `other_factor` for that.
  GNN_DIST_INLINE void merge(const Lanes<A>& lanes, Online other, A* factor, A* other_factor) {
    for (int64_t i = 0; i < lanes.period; i += W) {
      const auto mine = load_plain<A, W>(largest + i);
      const auto theirs = load_plain<A, W>(other.largest + i);
      const auto most = theirs > mine || theirs != theirs ? theirs : mine;
      const auto from = most == -infinity<A> ? vec<A, W>{} : most;
      const auto weight = exponential<A, W>(theirs - from);
      store_plain<A, W>(other_factor + i, weight);
      rescale(i, most, from, weight * load_plain<A, W>(other.total + i), factor);
    }
  }

 private:
  GNN_DIST_INLINE void rescale(int64_t at, vec<A, W> most, vec<A, W> from, vec<A, W> more,
                               A* factor) {
    const auto scale = exponential<A, W>(load_plain<A, W>(largest + at) - from);
    store_plain<A, W>(factor + at, scale);
    store_plain<A, W>(largest + at, most);
    store_plain<A, W>(total + at, load_plain<A, W>(total + at) * scale + more);
  }
};

template <class A>
GNN_DIST_INLINE A* state_of(const AttentionCall& call, int64_t row) {
  return static_cast<A*>(call.state) + row * call.fields * call.lanes;
}

template <class A>
GNN_DIST_INLINE const A* far_state_of(const AttentionCall& call, int64_t column) {
  return static_cast<const A*>(call.far_state) + column * call.fields * call.lanes;
}

// Writes a row's softmax to its state, and to `inverse` what exp(score - largest) is multiplied by.
template <class A>
GNN_DIST_INLINE void save_softmax(const AttentionCall& call, const Lanes<A>& lanes,
                                  const Online<A>& online, int64_t row, A* inverse) {
  const bool is_empty = call.indptr[row] == call.indptr[row + 1];
  A* state = state_of<A>(call, row);
  for (int64_t i = 0; i < lanes.lanes; ++i) {
    inverse[i] = is_empty ? A{0} : A{1} / online.total[i];
    state[gnn_dist::kLargest * lanes.lanes + i] = is_empty ? A{0} : online.largest[i];
    state[gnn_dist::kInverse * lanes.lanes + i] = inverse[i];
  }
}

// Entries that are worked on together.
struct Batch {
  int count;
  int32_t column[kBatch];
  int64_t copy[kBatch];  // how many equal entries stand right before each
  int64_t row;
  int64_t next;  // the entry after the last
};

// Rows of a matrix for each entry of a batch; a row of zeros for the entries that it lacks.
template <class S>
struct FarRows {
  const S* at[kBatch];
  GNN_DIST_INLINE FarRows(const AttentionCall& call, const gnn_dist::Matrix& matrix,
                          const Batch& batch) {
    for (int e = 0; e < kBatch; ++e) {
      at[e] = e < batch.count
                  ? static_cast<const S*>(matrix.data) + batch.column[e] * matrix.stride
                  : static_cast<const S*>(call.zeros);
    }
  }
};

GNN_DIST_INLINE void prefetch_row(const void* data, int64_t index, int64_t row_bytes,
                                  int64_t num_bytes) {
  // Not yet known to lie inside: an address only.
  prefetch_bytes(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(data) +
                                               static_cast<uintptr_t>(index * row_bytes)),
                 num_bytes);
}

// Asks for the rows of the eight entries after the batch.
template <class S>
GNN_DIST_INLINE void prefetch_next(const AttentionCall& call, const gnn_dist::Matrix& matrix,
                                   const Batch& batch) {
  const int64_t last = batch.next + kBatch < call.nnz ? batch.next + kBatch : call.nnz;
  for (int64_t entry = batch.next; entry < last; ++entry) {
    prefetch_row(matrix.data, call.indices[entry], matrix.stride * sizeof(S),
                 call.heads * call.width * static_cast<int64_t>(sizeof(S)));
  }
}

template <class A>
GNN_DIST_INLINE void prefetch_next_lanes(const AttentionCall& call, const void* data,
                                         int64_t fields, const Batch& batch) {
  const int64_t last = batch.next + kBatch < call.nnz ? batch.next + kBatch : call.nnz;
  const int64_t num_bytes = fields * call.lanes * static_cast<int64_t>(sizeof(A));
  for (int64_t entry = batch.next; entry < last; ++entry) {
    prefetch_row(data, call.indices[entry], num_bytes, num_bytes);
  }
}

// to[j] = 0 where the entry's coefficient is dropped, else 1 / (1 - p).
template <class A>
GNN_DIST_INLINE void draw_masks(const AttentionCall& call, const Batch& batch, uint64_t* words,
                                A* to) {
  const gnn_dist::EdgeDrops& drops = call.drops;
  const uint64_t own = static_cast<uint64_t>(drops.own_id[batch.row]);
  uint64_t src[kBatch], dst[kBatch], row[kBatch];
  for (int e = 0; e < kBatch; ++e) {
    const uint64_t far = e < batch.count ? static_cast<uint64_t>(drops.far_id[batch.column[e]]) : 0;
    src[e] = drops.own_is_dst ? far : own;
    dst[e] = drops.own_is_dst ? own : far;
  }
  for (int e = 0; e < kBatch; ++e) {
    const uint64_t id = gnn_dist::edge_id(src[e], dst[e], static_cast<uint64_t>(batch.copy[e]));
    row[e] = gnn_dist::row_key(drops.key, id);
  }
  // The halves of a word are the draws of two heads: as 32-bit numbers they lie in order.
  const int64_t lanes = call.lanes, per_entry = lanes > 1 ? lanes / 2 : 1;
  for (int64_t j = 0; 2 * j < call.heads; ++j) {
    uint64_t drawn[kBatch];
    for (int e = 0; e < kBatch; ++e) drawn[e] = gnn_dist::word(row[e], static_cast<uint64_t>(j));
    for (int e = 0; e < kBatch; ++e) words[e * per_entry + j] = drawn[e];
  }
  const A scale = static_cast<A>(drops.scale);
  for (int64_t i = 0; i < kBatch * lanes; ++i) {
    const uint64_t word = words[lanes > 1 ? i / 2 : i];
    const auto half = static_cast<uint32_t>(lanes > 1 && i % 2 != 0 ? word >> 32 : word);
    to[i] = half >= drops.threshold ? scale : A{0};
  }
}

// Rows of heads, in vectors of W elements that lie inside one head.
template <class S, int W>
struct Heads {
  using A = accumulate_t<S>;
  int64_t heads, lanes, width;
  int64_t vectors;  // of a head
  int64_t last;     // where the last one begins
  int64_t packed;   // elements of a head laid out packed

  explicit Heads(const AttentionCall& call)
      : heads(call.heads),
        lanes(call.lanes),
        width(call.width),
        vectors((width + W - 1) / W),
        last(width - W),
        packed(vectors * W) {}

  int64_t size() const { return heads * packed; }
  GNN_DIST_INLINE int64_t offset(int64_t v) const { return v + 1 < vectors ? v * W : last; }

  // Calls f(position in a packed row, column of a plain row, head). The last vector of a head comes
  // first: where it overlaps, the one before is stored over it.
  template <class F>
  GNN_DIST_INLINE void each(F f) const {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t v = vectors - 1; v >= 0; --v) f(h * packed + v * W, h * width + offset(v), h);
    }
  }
  template <class From>
  GNN_DIST_INLINE void pack(const From* from, A* to) const {
    each([&](int64_t at, int64_t column, int64_t) {
      store_plain<A, W>(to + at, load<From, W>(from + column));
    });
  }
  // For a factor of inner products.
  template <class From>
  GNN_DIST_INLINE void pack_factor(const From* from, A* to) const {
    pack(from, to);
    const int64_t overlap = packed - width;
    if (overlap == 0) return;
    for (int64_t h = 0; h < heads; ++h) fill(to + (h + 1) * packed - W, overlap, A{0});
  }
  template <class To>
  GNN_DIST_INLINE void unpack(const A* from, To* to) const {
    each([&](int64_t at, int64_t column, int64_t) {
      store<To, W>(to + column, load_plain<A, W>(from + at));
    });
  }

  // out[j] = the inner product, over a head, of an entry's row and a packed row.
  template <class Term>
  GNN_DIST_INLINE void dots_of(int count, A* out, Term term) const {
    const int64_t total = count * lanes;
    for (int64_t j = 0; j < total; j += 8) {
      int entry[8];
      int64_t head[8];
      for (int i = 0; i < 8; ++i) {
        entry[i] = static_cast<int>((j + i) / lanes);
        head[i] = (j + i) - entry[i] * lanes;
      }
      vec<A, W> sum[8];
      for (int i = 0; i < 8; ++i) sum[i] = vec<A, W>{};
      for (int64_t v = 0; v < vectors; ++v) {
        for (int i = 0; i < 8; ++i) {
          // Lanes without a head repeat the last one.
          const int64_t h = head[i] < heads ? head[i] : heads - 1;
          sum[i] += term(entry[i], h * width + offset(v), h * packed + v * W);
        }
      }
      sums_of_eight(sum, out + j);
    }
  }
  GNN_DIST_INLINE void dots(const FarRows<S>& far, const A* own, int count, A* out) const {
    dots_of(count, out, [&](int e, int64_t column, int64_t at) {
      return load<S, W>(far.at[e] + column) * load_plain<A, W>(own + at);
    });
  }
  // The same with leaky_relu(far + own) and a packed factor.
  GNN_DIST_INLINE void leaky_dots(const FarRows<S>& far, const A* own, const A* factor, A slope,
                                  int count, A* out) const {
    dots_of(count, out, [&](int e, int64_t column, int64_t at) {
      const auto z = load<S, W>(far.at[e] + column) + load_plain<A, W>(own + at);
      return load_plain<A, W>(factor + at) * (z * slope_of<A, W>(z, slope));
    });
  }
  // sums = factor * sums + the batch's rows, each head with its coefficient.
  template <bool kScale>
  GNN_DIST_INLINE void add(const FarRows<S>& far, const A* coefficient, const A* factor, int count,
                           A* sums) const {
    for (int64_t h = 0; h < heads; ++h) {
      const A* weight = coefficient + h;
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t column = h * width + offset(v);
        A* to = sums + h * packed + v * W;
        vec<A, W> even = load_plain<A, W>(to), odd{};
        if constexpr (kScale) even *= factor[h];
        if (count == kBatch) {
          for (int e = 0; e < kBatch; e += 2) {
            even += weight[e * lanes] * load<S, W>(far.at[e] + column);
            odd += weight[(e + 1) * lanes] * load<S, W>(far.at[e + 1] + column);
          }
        } else {
          for (int e = 0; e < count; ++e) {
            even += weight[e * lanes] * load<S, W>(far.at[e] + column);
          }
        }
        store_plain<A, W>(to, even + odd);
      }
    }
  }

 private:
  // Puts together lanes of two vectors: in the result, lane i belongs to a where bit kStep of i is
  // clear and to b where it is set.
  template <int kStep, int N>
  static GNN_DIST_INLINE vec<A, N> together(vec<A, N> a, vec<A, N> b) {
    vec<int_t<A>, N> at;
    for (int i = 0; i < N; ++i) at[i] = (i & ~kStep) + ((i & kStep) != 0 ? N : 0);
    return __builtin_shuffle(a, b, at) + __builtin_shuffle(a, b, at + kStep);
  }
  static GNN_DIST_INLINE void sums_of_eight(const vec<A, W>* sum, A* out) {
    if constexpr (W == 1) {
      for (int i = 0; i < 8; ++i) out[i] = sum[i];
    } else if constexpr (W == 2) {
      for (int i = 0; i < 8; i += 2) {
        store_plain<A, 2>(out + i, together<1, 2>(sum[i], sum[i + 1]));
      }
    } else if constexpr (W == 4) {
      for (int i = 0; i < 8; i += 4) {
        store_plain<A, 4>(out + i, together<2, 4>(together<1, 4>(sum[i], sum[i + 1]),
                                                  together<1, 4>(sum[i + 2], sum[i + 3])));
      }
    } else {
      vec<A, 8> eight[8];
      for (int i = 0; i < 8; ++i) eight[i] = to_eight(sum[i]);
      for (int i = 0; i < 8; i += 2) eight[i] = together<1, 8>(eight[i], eight[i + 1]);
      for (int i = 0; i < 8; i += 4) eight[i] = together<2, 8>(eight[i], eight[i + 2]);
      store_plain<A, 8>(out, together<4, 8>(eight[0], eight[4]));
    }
  }
  static GNN_DIST_INLINE vec<A, 8> to_eight(vec<A, W> value) {
    if constexpr (W == 8) {
      return value;
    } else {
      vec<A, 8> halves[2];
      __builtin_memcpy(halves, &value, sizeof value);
      return halves[0] + halves[1];
    }
  }
};

// Takes the entries [begin, end) of a row, batch by batch. Not inlined: it is most of the code.
template <class Pass>
__attribute__((noinline)) bool walk(const AttentionCall& call, Pass& pass, int64_t row, int64_t begin,
                          int64_t end) {
  const auto num_cols = static_cast<uint64_t>(call.num_cols);
  Batch batch;
  batch.row = row;
  int64_t copy = -1;
  if (call.drops.on) {
    for (int64_t i = begin; i > call.indptr[row] && call.indices[i - 1] == call.indices[begin];) {
      ++copy, --i;
    }
  }
  int32_t before = copy >= 0 ? call.indices[begin] : -1;
  for (int64_t entry = begin; entry < end; entry += kBatch) {
    batch.count = end - entry < kBatch ? static_cast<int>(end - entry) : kBatch;
    batch.next = entry + batch.count;
    for (int e = 0; e < batch.count; ++e) {
      const int32_t column = call.indices[entry + e];
      if (__builtin_expect(static_cast<uint64_t>(static_cast<int64_t>(column)) >= num_cols, 0)) {
        return false;
      }
      copy = column == before ? copy + 1 : 0;
      before = column;
      batch.column[e] = column;
      batch.copy[e] = copy;
    }
    for (int e = batch.count; e < kBatch; ++e) batch.column[e] = 0, batch.copy[e] = 0;
    pass.take(batch);
  }
  return true;
}

// A pass as the operators call it. Pass has: Pass(call, carver), whose first piece of scratch is
// the block; clear(); open(row), before entries are taken or a row is finished; take(batch);
// merge(block); finish(row, slot); block_size, slot_size in elements; collect.
template <class Pass>
struct RunPass {
  using A = typename Pass::A;

  static int64_t scratch_bytes(const AttentionCall& call) {
    Carver carver{nullptr};
    const Pass pass(call, carver);
    return carver.used;
  }
  static int64_t block_bytes(const AttentionCall& call) {
    Carver carver{nullptr};
    return Pass(call, carver).block_size * static_cast<int64_t>(sizeof(A));
  }
  static int64_t slot_bytes(const AttentionCall& call) {
    Carver carver{nullptr};
    return Pass(call, carver).slot_size * static_cast<int64_t>(sizeof(A));
  }
  static bool rows(const AttentionCall& call, int64_t row_begin, int64_t row_end, void* scratch,
                   void* slot) {
    Carver carver{static_cast<char*>(scratch)};
    Pass pass(call, carver);
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t begin = call.indptr[row], end = call.indptr[row + 1];
      if (end - begin > gnn_dist::kHubEntries) continue;  // done in pieces
      pass.clear();
      pass.open(row);
      if (!walk(call, pass, row, begin, end)) return false;
      pass.finish(row, static_cast<A*>(slot));
    }
    return true;
  }
  static bool piece(const AttentionCall& call, int64_t row, int64_t begin, int64_t end,
                    void* scratch, void* block) {
    Carver carver{static_cast<char*>(scratch)};
    Pass pass(call, carver);
    pass.clear();
    pass.open(row);
    if (!walk(call, pass, row, begin, end)) return false;
    __builtin_memcpy(block, scratch, static_cast<size_t>(pass.block_size) * sizeof(A));
    return true;
  }
  static void finish(const AttentionCall& call, int64_t row, void* scratch, const void* blocks,
                     int64_t num_blocks, void* slot) {
    Carver carver{static_cast<char*>(scratch)};
    Pass pass(call, carver);
    pass.clear();
    pass.open(row);
    for (int64_t i = 0; i < num_blocks; ++i) {
      pass.merge(static_cast<const A*>(blocks) + i * pass.block_size);
    }
    pass.finish(row, static_cast<A*>(slot));
  }
  static void collect(const AttentionCall& call, const void* slots, int64_t num_slots, void* first,
                      void* second) {
    Carver carver{nullptr};
    const Pass pass(call, carver);
    if (pass.slot_size == 0) return;
    auto* sum = const_cast<A*>(static_cast<const A*>(slots));
    for (int64_t i = 1; i < num_slots; ++i) {
      for (int64_t k = 0; k < pass.slot_size; ++k) sum[k] += sum[i * pass.slot_size + k];
    }
    pass.collect(sum, static_cast<A*>(first), static_cast<A*>(second));
  }
  static constexpr gnn_dist::AttentionPass table = {scratch_bytes, block_bytes, slot_bytes, rows,
                                                    piece,         finish,      collect};
};

// The width that stands for W: a vector has at most a register's elements, and two floats alone
// gain nothing.
template <class S, int W>
constexpr int fitting_width = W > full_width<accumulate_t<S>> ? full_width<accumulate_t<S>>
                              : W == 2 && sizeof(accumulate_t<S>) == 4 ? 1
                                                                       : W;

// An initialiser of AttentionKernels from the classes KindForward, KindBackwardRows and
// KindBackwardColumns.
#define GNN_DIST_PASSES_OF_WIDTH(Kind, S, W)                  \
  {                                                           \
    RunPass<Kind##Forward<S, fitting_width<S, W>>>::table,     \
    RunPass<Kind##BackwardRows<S, fitting_width<S, W>>>::table, \
    RunPass<Kind##BackwardColumns<S, fitting_width<S, W>>>::table \
  }
#define GNN_DIST_PASSES_OF_TYPE(Kind, S)                                        \
  {                                                                             \
    GNN_DIST_PASSES_OF_WIDTH(Kind, S, 1), GNN_DIST_PASSES_OF_WIDTH(Kind, S, 2), \
    GNN_DIST_PASSES_OF_WIDTH(Kind, S, 4), GNN_DIST_PASSES_OF_WIDTH(Kind, S, 8), \
    GNN_DIST_PASSES_OF_WIDTH(Kind, S, 16)                                       \
  }
#define GNN_DIST_ATTENTION_PASSES(Kind)                                            \
  {                                                                                \
    GNN_DIST_PASSES_OF_TYPE(Kind, float), GNN_DIST_PASSES_OF_TYPE(Kind, double),   \
    GNN_DIST_PASSES_OF_TYPE(Kind, bf16), GNN_DIST_PASSES_OF_TYPE(Kind, f16)        \
  }

}  // namespace GNN_DIST_ISA
