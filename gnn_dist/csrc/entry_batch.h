// Entries of a row taken eight at a time, for files in hot/.
//
// Numbers per entry and head lie side by side, entry by entry: number j = entry * lanes + head. They
// are worked on in full vectors however few heads there are; rows of x in vectors that lie inside
// one head. What belongs to the walked row itself is laid out "packed": each head's vectors follow
// one another, the last one ending at the head's last column, so that it may overlap the one before.
// In a factor of an inner product the overlap is zero, lest its columns count twice.
#pragma once

// No vector is passed to a function that is not inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

#include "attention.h"
#include "draws.h"
#include "exp.h"
#include "simd.h"

// What is called once a batch or a row is not inlined: it would make most of the code.
#define GNN_DIST_NOINLINE __attribute__((noinline))

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

// Inside a piece of scratch memory, if there is any yet.
template <class T>
GNN_DIST_INLINE T* part_of(T* piece, int64_t offset) {
  return piece != nullptr ? piece + offset : nullptr;
}

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

  explicit Lanes(const AttentionCall& call) : Lanes(call.heads, call.lanes) {}
  Lanes(int64_t num_heads, int64_t num_lanes)
      : heads(num_heads),
        lanes(num_lanes),
        period(lanes > W ? lanes : W),
        size(kBatch * lanes > W ? kBatch * lanes : W) {}

  // Where a pattern is at j.
  GNN_DIST_INLINE int64_t place(int64_t j) const {
    return lanes <= 16 ? j & (period - 1) : j % period;
  }
  // to[i] = from[i % lanes] for a whole period.
  GNN_DIST_NOINLINE void repeat(const A* from, A* to) const {
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
  // Adds a vector at j to sums of a period, leaving out entries that a batch of `count` lacks.
  GNN_DIST_INLINE void add(A* sums, int64_t j, int64_t count, vec<A, W> value) const {
    A* to = sums + place(j);
    store_plain<A, W>(to, load_plain<A, W>(to) + only(value, j, count));
  }
  GNN_DIST_NOINLINE void fold_sums(A* sums) const {
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
  A *largest, *total;  // a period each

  GNN_DIST_NOINLINE void clear(const Lanes<A>& lanes) const {
    fill(largest, lanes.period, -infinity<A>);
    fill(total, lanes.period, A{0});
  }
  // Turns a batch's scores into exp(score - largest); rows added up so far need `factor`.
  GNN_DIST_NOINLINE void take(const Lanes<A>& lanes, int count, A* scores,
                                      A* factor) const {
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
  GNN_DIST_NOINLINE void merge(const Lanes<A>& lanes, Online other, A* factor,
                                       A* other_factor) const {
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
                               A* factor) const {
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

// Writes a row's softmax to its state, and to `inverse` what exp(score - largest) is multiplied by.
template <class A>
GNN_DIST_NOINLINE void save_softmax(const AttentionCall& call, const Lanes<A>& lanes,
                                  const Online<A>& online, int64_t row, A* inverse) {
  const bool is_empty = call.indptr[row] == call.indptr[row + 1];
  A* state = state_of<A>(call, row);
  for (int64_t i = 0; i < lanes.lanes; ++i) {
    inverse[i] = is_empty ? A{0} : A{1} / online.total[i];
    state[gnn_dist::kLargest * lanes.lanes + i] = is_empty ? A{0} : online.largest[i];
    state[gnn_dist::kInverse * lanes.lanes + i] = inverse[i];
  }
}

// Entries that are worked on together. What it lacks of eight stands at column 0.
struct Batch {
  int count;
  int32_t column[kBatch];
  int64_t copy[kBatch];  // how many equal entries stand right before each
  int64_t row;
  int64_t next;  // the entry after the last
};

// The softmax of rows as the backward needs it: of one row, repeated, or of each entry's.
template <class A>
struct Softmax {
  const A *largest, *inverse, *inner;
  bool by_entry;
};

// From scores, the inner products d of a gradient and a value, and masks m: what a value's gradient
// is multiplied by, alpha m (into masks), and the gradient of the score, alpha (m d - inner) (into
// scores).
template <class A>
GNN_DIST_NOINLINE void score_gradients(const Lanes<A>& lanes, int64_t count,
                                               const Softmax<A>& softmax, const A* dots, A* scores,
                                               A* masks) {
  constexpr int W = full_width<A>;
  for (int64_t j = 0; j < count * lanes.lanes; j += W) {
    const int64_t i = softmax.by_entry ? j : lanes.place(j);
    const auto power =
        exponential<A, W>(load_plain<A, W>(scores + j) - load_plain<A, W>(softmax.largest + i));
    const auto alpha = power * load_plain<A, W>(softmax.inverse + i);
    const auto mask = load_plain<A, W>(masks + j);
    const auto part = mask * load_plain<A, W>(dots + j) - load_plain<A, W>(softmax.inner + i);
    store_plain<A, W>(scores + j, alpha * part);
    store_plain<A, W>(masks + j, alpha * mask);
  }
}

// Asks for numbers per head, a row of `fields` times lanes for each column, of the entries after a
// batch.
template <class A>
GNN_DIST_INLINE void prefetch_next_lanes(const AttentionCall& call, const void* data,
                                         int64_t fields, const Batch& batch) {
  const int64_t last = batch.next + kBatch < call.nnz ? batch.next + kBatch : call.nnz;
  const int64_t num_bytes = fields * call.lanes * static_cast<int64_t>(sizeof(A));
  for (int64_t entry = batch.next; entry < last; ++entry) {
    prefetch_bytes(reinterpret_cast<const void*>(
                       reinterpret_cast<uintptr_t>(data) +
                       static_cast<uintptr_t>(call.indices[entry] * num_bytes)),
                   num_bytes);
  }
}

// The state of each entry's destination.
template <class A>
struct FarState {
  A *const largest, *const inverse, *const inner, *const score;

  FarState(const Lanes<A>& lanes, Carver& carver)
      : largest(carver.take<A>(lanes.size)),
        inverse(carver.take<A>(lanes.size)),
        inner(carver.take<A>(lanes.size)),
        score(carver.take<A>(lanes.size)) {}

  GNN_DIST_NOINLINE void load(const AttentionCall& call, const Lanes<A>& lanes,
                            const Batch& batch) const {
    prefetch_next_lanes<A>(call, call.far_state, call.fields, batch);
    for (int e = 0; e < batch.count; ++e) {
      const A* from = static_cast<const A*>(call.far_state) +
                      batch.column[e] * call.fields * lanes.lanes;
      const int64_t j = e * lanes.lanes;
      lanes.copy(from + gnn_dist::kLargest * lanes.lanes, largest + j);
      lanes.copy(from + gnn_dist::kInverse * lanes.lanes, inverse + j);
      lanes.copy(from + gnn_dist::kInner * lanes.lanes, inner + j);
      if (call.fields <= gnn_dist::kScore) continue;
      lanes.copy(from + gnn_dist::kScore * lanes.lanes, score + j);
    }
  }
  GNN_DIST_INLINE Softmax<A> softmax() const { return {largest, inverse, inner, true}; }
};

// Rows of a matrix for each entry of a batch, and of the eight entries after a full one, which are
// asked for while the batch is worked on.
template <class S>
struct FarRows {
  const S* at[kBatch];
  uintptr_t next[kBatch];

  GNN_DIST_INLINE FarRows(const AttentionCall& call, const gnn_dist::Matrix& matrix,
                          const Batch& batch) {
    for (int e = 0; e < kBatch; ++e) {
      at[e] = static_cast<const S*>(matrix.data) + batch.column[e] * matrix.stride;
    }
    // Not yet known to lie inside: addresses only.
    const int64_t row_bytes = matrix.stride * static_cast<int64_t>(sizeof(S));
    const int64_t last = call.nnz - 1;
    for (int e = 0; e < kBatch; ++e) {
      const int64_t entry = batch.next + e < last ? batch.next + e : last;
      next[e] = reinterpret_cast<uintptr_t>(matrix.data) +
                static_cast<uintptr_t>(call.indices[entry] * row_bytes);
    }
    if (batch.count == kBatch) return;
    const int64_t num_bytes = call.heads * call.width * static_cast<int64_t>(sizeof(S));
    for (int e = 0; e < kBatch; ++e) {
      prefetch_bytes(reinterpret_cast<const void*>(next[e]), num_bytes);
    }
  }
  // Asks for W elements of a next row: once for each cache line, or so.
  template <int W>
  GNN_DIST_INLINE void prefetch(int e, int64_t column) const {
    constexpr int64_t kLine = 64 / sizeof(S);
    if (W < kLine && column % kLine >= W) return;
    __builtin_prefetch(
        reinterpret_cast<const void*>(next[e] + static_cast<uintptr_t>(column) * sizeof(S)));
  }
};

// to[j] *= 0 where the entry's coefficient is dropped, else 1 / (1 - p). `halves` has room for
// Lanes::size.
template <class A>
GNN_DIST_NOINLINE void draw_drops(const AttentionCall& call, const Batch& batch,
                                    uint32_t* halves, A* to) {
  typedef vec<uint64_t, kBatch> Words;
  const gnn_dist::EdgeDrops& drops = call.drops;
  const auto own = static_cast<uint64_t>(drops.own_id[batch.row]);
  Words far, copy, position;
  uint64_t ids[kBatch];
  for (int e = 0; e < kBatch; ++e) ids[e] = static_cast<uint64_t>(drops.far_id[batch.column[e]]);
  __builtin_memcpy(&far, ids, sizeof far);
  __builtin_memcpy(&copy, batch.copy, sizeof copy);
  for (int e = 0; e < kBatch; ++e) position[e] = static_cast<uint64_t>(e);
  using gnn_dist::kGolden;
  using gnn_dist::mix;
  // edge_id and row_key of draws.h, for eight entries.
  const Words ends = drops.own_is_dst ? mix<Words>(far + kGolden) + own
                                      : far + mix<uint64_t>(own + kGolden);
  const Words row = mix<Words>(mix<Words>(mix<Words>(ends) + copy + kGolden) ^ drops.key);
  // Word j of an entry serves heads 2 j and 2 j + 1: as 32-bit numbers, draws lie in our order.
  const auto lanes = static_cast<uint64_t>(call.lanes), per_entry = lanes > 1 ? lanes / 2 : 1;
  for (uint64_t i = 0; i < kBatch * per_entry; i += kBatch) {
    const Words at = position + i;
    Words from, j;
    if (per_entry <= kBatch) {
      const int shift = __builtin_ctzll(per_entry);
      from = __builtin_shuffle(row, at >> shift);
      j = at & (per_entry - 1);
    } else {
      const uint64_t e = i / per_entry;
      from = Words{} + row[e];
      j = at - e * per_entry;
    }
    const Words word = mix<Words>(from + (j + 1) * kGolden);
    if (lanes > 1) {
      __builtin_memcpy(halves + 2 * i, &word, sizeof word);
    } else {
      for (int e = 0; e < kBatch; ++e) halves[e] = static_cast<uint32_t>(word[e]);
    }
  }
  const A scale = static_cast<A>(drops.scale);
  for (uint64_t i = 0; i < kBatch * lanes; ++i) {
    to[i] *= halves[i] >= drops.threshold ? scale : A{0};
  }
}

template <class A>
GNN_DIST_INLINE void drop(const AttentionCall& call, const Batch& batch, uint32_t* halves, A* to) {
  if (call.drops.on) draw_drops<A>(call, batch, halves, to);
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

  // Calls f(column of a plain row, position in a packed row) for each vector of a head.
  template <class F>
  GNN_DIST_INLINE void vectors_of(int64_t head, F f) const {
    int64_t column = head * width, at = head * packed;
    for (int64_t v = 1; v < vectors; ++v, column += W, at += W) f(column, at);
    f(head * width + last, at);
  }
  // Calls f(position in a packed row, column of a plain row, head). The last vector of a head comes
  // first: where it overlaps, the one before is stored over it.
  template <class F>
  GNN_DIST_INLINE void each(F f) const {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t v = vectors - 1; v >= 0; --v) f(h * packed + v * W, h * width + offset(v), h);
    }
  }
  template <class From>
  GNN_DIST_NOINLINE void pack(const From* from, A* to) const {
    each([&](int64_t at, int64_t column, int64_t) {
      store_plain<A, W>(to + at, load<From, W>(from + column));
    });
  }
  // For a factor of inner products.
  template <class From>
  GNN_DIST_NOINLINE void pack_factor(const From* from, A* to) const {
    pack(from, to);
    const int64_t overlap = packed - width;
    if (overlap == 0) return;
    for (int64_t h = 0; h < heads; ++h) fill(to + (h + 1) * packed - W, overlap, A{0});
  }
  template <class To>
  GNN_DIST_NOINLINE void unpack(const A* from, To* to) const {
    each([&](int64_t at, int64_t column, int64_t) {
      store<To, W>(to + column, load_plain<A, W>(from + at));
    });
  }

  // out[j] = the sum over a head's columns of term(entry, column, position in a packed row).
  template <class Term>
  GNN_DIST_INLINE void sums(int count, A* out, Term term) const {
    if (vectors == 1 && heads % 8 == 0 && width == W) {
      // Eight heads side by side: all addresses are constants away from the first.
      for (int64_t e = 0; e < count; ++e) {
        for (int64_t h = 0; h < heads; h += 8) {
          vec<A, W> sum[8];
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) sum[i] = term(e, (h + i) * W, (h + i) * W);
          sums_of_eight(sum, out + e * lanes + h);
        }
      }
      return;
    }
    const int64_t total = count * lanes;
    const int shift = __builtin_ctzll(static_cast<uint64_t>(lanes));
    for (int64_t j = 0; j < total; j += 8) {
      // Eight numbers of one entry, or of the heads of several.
      const int64_t whole = lanes <= 8 ? 0 : j / lanes;
      vec<A, W> sum[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const int64_t e = lanes <= 8 ? (j + i) >> shift : whole;
        const int64_t lane = lanes <= 8 ? (j + i) & (lanes - 1) : j + i - whole * lanes;
        // Lanes without a head repeat the last one.
        const int64_t h = lane < heads ? lane : heads - 1;
        sum[i] = vec<A, W>{};
        vectors_of(h, [&](int64_t column, int64_t at) { sum[i] += term(e, column, at); });
      }
      sums_of_eight(sum, out + j);
    }
  }
  // The inner products of an entry's row and a packed row. Asks for the next rows.
  GNN_DIST_NOINLINE void dots(const FarRows<S>& far, const A* own, int count, A* out) const {
    sums(count, out, [&](int64_t e, int64_t column, int64_t at) {
      far.template prefetch<W>(e, column);
      return load<S, W>(far.at[e] + column) * load_plain<A, W>(own + at);
    });
  }
  // Those of leaky_relu(an entry's row + a packed row) and a packed factor.
  GNN_DIST_NOINLINE void leaky_dots(const FarRows<S>& far, const A* own, const A* factor, A slope,
                                    int count, A* out) const {
    sums(count, out, [&](int64_t e, int64_t column, int64_t at) {
      far.template prefetch<W>(e, column);
      const auto z = load<S, W>(far.at[e] + column) + load_plain<A, W>(own + at);
      return load_plain<A, W>(factor + at) * (z * slope_of<A, W>(z, slope));
    });
  }
  // With z = an entry's row + a packed row and s its slope: adds coefficient * s to `steep` and,
  // where kTwo, coefficient * s * z to `leaky`.
  template <bool kTwo>
  GNN_DIST_NOINLINE void leaky_add(const FarRows<S>& far, const A* own, const A* coefficient,
                                   A slope, int count, A* steep, A* leaky) const {
    for (int64_t h = 0; h < heads; ++h) {
      const A* weight = coefficient + h;
      const auto one = [&](int64_t column, int64_t at) {
        const auto mine = load_plain<A, W>(own + at);
        auto first = load_plain<A, W>(steep + at);
        auto second = kTwo ? load_plain<A, W>(leaky + at) : vec<A, W>{};
        for (int e = 0; e < count; ++e) {
          const auto z = load<S, W>(far.at[e] + column) + mine;
          const auto part = weight[e * lanes] * slope_of<A, W>(z, slope);
          first += part;
          if constexpr (kTwo) second += part * z;
        }
        store_plain<A, W>(steep + at, first);
        if constexpr (kTwo) store_plain<A, W>(leaky + at, second);
      };
      vectors_of(h, one);
    }
  }
  // to[lane] = the inner product, over each head, of a plain row and a packed factor.
  template <class From>
  GNN_DIST_NOINLINE void inner(const From* from, const A* factor, A* to) const {
    fill(to, lanes, A{0});
    for (int64_t h = 0; h < heads; ++h) {
      auto sum = vec<A, W>{};
      vectors_of(h, [&](int64_t column, int64_t at) {
        sum += load<From, W>(from + column) * load_plain<A, W>(factor + at);
      });
      to[h] = horizontal_sum<A, W>(sum);
    }
  }
  // to = factor * to + the batch's rows, each head with its coefficient.
  template <bool kScale, bool kPrefetch>
  GNN_DIST_NOINLINE void add(const FarRows<S>& far, const A* coefficient, const A* factor,
                             int count, A* to) const {
    if (packed == width && heads * vectors % 8 == 0) {
      if (vectors == 1) return add_eights<kScale, kPrefetch, 1>(far, coefficient, factor, count, to);
      if (vectors == 2) return add_eights<kScale, kPrefetch, 2>(far, coefficient, factor, count, to);
      if (vectors == 4) return add_eights<kScale, kPrefetch, 4>(far, coefficient, factor, count, to);
      if (vectors % 8 == 0) {
        return add_eights<kScale, kPrefetch, 8>(far, coefficient, factor, count, to);
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      const A* weight = coefficient + h;
      const auto one = [&](int64_t column, int64_t at) {
        vec<A, W> sum = load_plain<A, W>(to + at);
        if constexpr (kScale) sum *= factor[h];
        for (int e = 0; e < count; ++e) {
          if constexpr (kPrefetch) far.template prefetch<W>(e, column);
          sum += weight[e * lanes] * load<S, W>(far.at[e] + column);
        }
        store_plain<A, W>(to + at, sum);
      };
      vectors_of(h, one);
    }
  }

 private:
  // Eight vectors at a time stay in registers; kVectors of them share a coefficient. They neither
  // overlap nor leave columns out.
  template <bool kScale, bool kPrefetch, int kVectors>
  GNN_DIST_INLINE void add_eights(const FarRows<S>& far, const A* coefficient, const A* factor,
                                  int count, A* to) const {
    for (int64_t first = 0; first < heads * vectors; first += 8) {
      const int64_t head = first / vectors, column = first * W;
      vec<A, W> sum[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        sum[i] = load_plain<A, W>(to + column + i * W);
        if constexpr (kScale) sum[i] *= factor[head + i / kVectors];
      }
      for (int e = 0; e < count; ++e) {
        const S* row = far.at[e] + column;
        const A* weight = coefficient + e * lanes + head;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          if constexpr (kPrefetch) far.template prefetch<W>(e, column + i * W);
          sum[i] += weight[i / kVectors] * load<S, W>(row + i * W);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) store_plain<A, W>(to + column + i * W, sum[i]);
    }
  }
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

// A row's gradient as a packed factor, and its softmax.
template <class A>
struct RowGradient {
  A *const factor, *const largest, *const inverse, *const inner;

  RowGradient(const Lanes<A>& lanes, int64_t size, Carver& carver)
      : factor(carver.take<A>(size)),
        largest(carver.take<A>(lanes.period)),
        inverse(carver.take<A>(lanes.period)),
        inner(carver.take<A>(lanes.period)) {}

  template <class S, int W>
  GNN_DIST_INLINE void load(const AttentionCall& call, const Lanes<A>& lanes,
                            const Heads<S, W>& heads, int64_t row) const {
    heads.pack_factor(static_cast<const S*>(call.grad.data) + row * call.grad.stride, factor);
    const A* state = state_of<A>(call, row);
    lanes.repeat(state + gnn_dist::kLargest * lanes.lanes, largest);
    lanes.repeat(state + gnn_dist::kInverse * lanes.lanes, inverse);
    heads.inner(static_cast<const S*>(call.result.data) + row * call.result.stride, factor, inner);
    for (int64_t i = lanes.lanes; i < lanes.period; ++i) inner[i] = inner[i - lanes.lanes];
  }
  GNN_DIST_INLINE void save(const AttentionCall& call, const Lanes<A>& lanes, int64_t row) const {
    lanes.copy(inner, state_of<A>(call, row) + gnn_dist::kInner * lanes.lanes);
  }
  GNN_DIST_INLINE Softmax<A> softmax() const { return {largest, inverse, inner, false}; }
};

// Goes on from another part of a row, a block of softmax and sums.
template <class A, class Heads>
GNN_DIST_NOINLINE void merge_softmax(const Lanes<A>& lanes, const Heads& heads,
                                             const Online<A>& online, A* sums, const A* block,
                                             A* factor, A* other_factor) {
  auto* part = const_cast<A*>(block);
  online.merge(lanes, Online<A>{part, part + lanes.period}, factor, other_factor);
  const A* more = block + 2 * lanes.period;
  for (int64_t h = 0; h < heads.heads; ++h) {
    for (int64_t i = h * heads.packed; i < (h + 1) * heads.packed; ++i) {
      sums[i] = sums[i] * factor[h] + more[i] * other_factor[h];
    }
  }
}

// Writes factor * sums to a row of out.
template <class A, class S, int W>
GNN_DIST_INLINE void save_scaled(const AttentionCall& call, const Heads<S, W>& heads, int64_t row,
                                 A* sums, const A* factor) {
  heads.each([&](int64_t at, int64_t, int64_t h) {
    store_plain<A, W>(sums + at, load_plain<A, W>(sums + at) * factor[h]);
  });
  heads.unpack(sums, static_cast<S*>(call.out.data) + row * call.out.stride);
}

template <class A>
GNN_DIST_INLINE void add_to(A* to, const A* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// Takes the entries [begin, end) of a row, batch by batch. Not inlined: it is most of the code.
template <class Pass>
GNN_DIST_NOINLINE bool walk(const AttentionCall& call, Pass& pass, int64_t row, int64_t begin,
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
