// Short vectors whose width follows the instruction set a file is compiled for.
//
// Included by files in hot/ only. They are compiled several times, once per instruction set, so
// nothing here or there may instantiate a template of the standard library: the linker would keep
// one copy of it, perhaps one that the running CPU cannot execute.
#pragma once

#include <stdint.h>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include "dtypes.h"

#define GNN_DIST_INLINE inline __attribute__((always_inline))

namespace GNN_DIST_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int W>
struct VecOf {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <class T>
struct VecOf<T, 1> {
  typedef T type;
};
template <class T, int W>
using vec = typename VecOf<T, W>::type;

// The type that values of storage type S are added up in.
template <class S>
struct AccumulateOf {
  using type = float;
};
template <>
struct AccumulateOf<double> {
  using type = double;
};
template <class S>
using accumulate_t = typename AccumulateOf<S>::type;

// The integer of the width of A; comparing vectors of A gives vectors of it.
template <class A>
struct IntOf {
  using type = int32_t;
};
template <>
struct IntOf<double> {
  using type = int64_t;
};
template <class A>
using int_t = typename IntOf<A>::type;

template <class A>
constexpr int full_width = kVectorBytes / static_cast<int>(sizeof(A));

template <class T, int W>
GNN_DIST_INLINE vec<T, W> load_plain(const T* from) {
  vec<T, W> out;
  __builtin_memcpy(&out, from, sizeof out);
  return out;
}

template <class T, int W>
GNN_DIST_INLINE void store_plain(T* to, vec<T, W> value) {
  __builtin_memcpy(to, &value, sizeof value);
}

template <class T, int W>
GNN_DIST_INLINE vec<T, W> broadcast(T value) {
  if constexpr (W == 1) {
    return value;
  } else {
    return value - vec<T, W>{};
  }
}

template <class To, class From, int W>
GNN_DIST_INLINE vec<To, W> convert(vec<From, W> value) {
  if constexpr (W == 1) {
    return static_cast<To>(value);
  } else {
    return __builtin_convertvector(value, vec<To, W>);
  }
}

template <class To, class From>
GNN_DIST_INLINE To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  __builtin_memcpy(&out, &value, sizeof out);
  return out;
}

// Loads W values of storage type S as values of its accumulation type.
template <class S, int W>
GNN_DIST_INLINE vec<accumulate_t<S>, W> load(const S* from) {
  if constexpr (is_same<S, bf16>) {
    auto bits = load_plain<uint16_t, W>(reinterpret_cast<const uint16_t*>(from));
    return bit_cast<vec<float, W>>(convert<uint32_t, uint16_t, W>(bits) << 16);
  } else if constexpr (is_same<S, f16>) {
    const auto* half = reinterpret_cast<const uint16_t*>(from);
#if defined(__AVX512F__)
    if constexpr (W == 16) {
      return bit_cast<vec<float, W>>(
          _mm512_cvtph_ps(bit_cast<__m256i>(load_plain<uint16_t, 16>(half))));
    }
#endif
#if defined(__F16C__)
    if constexpr (W == 8) {
      return bit_cast<vec<float, W>>(
          _mm256_cvtph_ps(bit_cast<__m128i>(load_plain<uint16_t, 8>(half))));
    }
#endif
    vec<float, W> out{};
    if constexpr (W == 1) {
      out = half_to_float(*half);
    } else {
      for (int i = 0; i < W; ++i) out[i] = half_to_float(half[i]);
    }
    return out;
  } else {
    return load_plain<S, W>(from);
  }
}

// Rounds to nearest, ties to even, as PyTorch does.
template <class S, int W>
GNN_DIST_INLINE void store(S* to, vec<accumulate_t<S>, W> value) {
  if constexpr (is_same<S, bf16>) {
    auto bits = bit_cast<vec<uint32_t, W>>(value);
    auto rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    auto quiet = (bits >> 16) | 0x40;  // rounding could carry a NaN over to infinity
    auto out = convert<uint16_t, uint32_t, W>(value == value ? rounded : quiet);
    store_plain<uint16_t, W>(reinterpret_cast<uint16_t*>(to), out);
  } else if constexpr (is_same<S, f16>) {
    auto* half = reinterpret_cast<uint16_t*>(to);
#if defined(__AVX512F__)
    if constexpr (W == 16) {
      store_plain<uint16_t, 16>(half, bit_cast<vec<uint16_t, 16>>(_mm512_cvtps_ph(
          bit_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
      return;
    }
#endif
#if defined(__F16C__)
    if constexpr (W == 8) {
      store_plain<uint16_t, 8>(half, bit_cast<vec<uint16_t, 8>>(_mm256_cvtps_ph(
          bit_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT)));
      return;
    }
#endif
    if constexpr (W == 1) {
      *half = float_to_half(value);
    } else {
      for (int i = 0; i < W; ++i) half[i] = float_to_half(value[i]);
    }
  } else {
    store_plain<S, W>(to, value);
  }
}

template <class A, int W>
GNN_DIST_INLINE A horizontal_sum(vec<A, W> value) {
  if constexpr (W == 1) {
    return value;
  } else {
    using Half = vec<A, W / 2>;
    Half parts[2];
    __builtin_memcpy(parts, &value, sizeof value);
    return horizontal_sum<A, W / 2>(parts[0] + parts[1]);
  }
}

GNN_DIST_INLINE void prefetch_bytes(const void* from, int64_t num_bytes) {
  const char* at = static_cast<const char*>(from);
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(at + i);
  __builtin_prefetch(at + num_bytes - 1);  // an unaligned row may reach into one line more
}

}  // namespace GNN_DIST_ISA
