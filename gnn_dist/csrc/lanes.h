// Numbers per entry and head, for files in hot/.
//
// They lie side by side, entry by entry: number j = entry * lanes + head. They are worked on in
// full vectors however few heads there are.
#pragma once

// No vector is passed to a function that is not inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

#include "attention.h"
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

template <class A>
GNN_DIST_INLINE void add_to(A* to, const A* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
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

}  // namespace GNN_DIST_ISA
