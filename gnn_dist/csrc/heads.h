// Rows of heads, for files in hot/.
//
// Rows of x are worked on in vectors that lie inside one head. What belongs to the walked row is
// laid out "packed": each head's vectors follow one another, the last one ending at the head's last
// column, so that it may overlap the one before. In a factor of an inner product the overlap is
// zero, lest its columns count twice.
#pragma once

#include "entry_batch.h"

namespace GNN_DIST_ISA {

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

}  // namespace GNN_DIST_ISA
