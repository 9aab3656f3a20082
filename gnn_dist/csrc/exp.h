// The exponential function of vectors, for files in hot/.
//
// exp(x) = 2^n exp(r) with n the integer next to x / ln 2, so |r| <= ln 2 / 2, where the Taylor
// polynomial's remainder lies below the type's precision: r^8 / 8! < 6e-9, r^14 / 14! < 5e-18.
#pragma once

#include "simd.h"

namespace GNN_DIST_ISA {

template <class A>
struct ExpOf;

template <>
struct ExpOf<float> {
  static constexpr float kLowest = -104.0f, kHighest = 89.0f;  // beyond: 0, infinity
  static constexpr float kRound = 0x1.8p23f;  // adding it leaves an integer in the last bits
  // ln 2 in two parts: n times the first is exact.
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr int kMantissa = 23, kBias = 127, kDegree = 7;
};

template <>
struct ExpOf<double> {
  static constexpr double kLowest = -746.0, kHighest = 710.0;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr int kMantissa = 52, kBias = 1023, kDegree = 13;
};

template <class A, int W>
GNN_DIST_INLINE vec<A, W> exponential(vec<A, W> x) {
  using K = ExpOf<A>;
  using I = int_t<A>;
  constexpr A kLog2E = static_cast<A>(1.4426950408889634074);
  // A NaN passes both comparisons and stays one.
  x = x > K::kHighest ? broadcast<A, W>(K::kHighest) : x;
  x = x < K::kLowest ? broadcast<A, W>(K::kLowest) : x;
  const vec<A, W> shifted = x * kLog2E + K::kRound;
  const vec<A, W> whole = shifted - K::kRound;
  const vec<I, W> n = bit_cast<vec<I, W>>(shifted) - bit_cast<I>(K::kRound);
  const vec<A, W> r = (x - whole * K::kLn2High) - whole * K::kLn2Low;
  vec<A, W> sum = broadcast<A, W>(A{1});
  // 1 + r (1 + r / 2 (1 + r / 3 (...))): the factors are constants once the loop is unrolled.
#pragma GCC unroll 16
  for (int i = K::kDegree; i >= 1; --i) sum = sum * (r * (A{1} / i)) + A{1};
  // In two steps: 2^n itself may lie below the smallest normal number or above the largest.
  const vec<I, W> half = n >> 1;
  const auto first = bit_cast<vec<A, W>>((half + K::kBias) << K::kMantissa);
  const auto second = bit_cast<vec<A, W>>((n - half + K::kBias) << K::kMantissa);
  return sum * first * second;
}

}  // namespace GNN_DIST_ISA
