// Counter-based random numbers, defined in ops/draws.py: the same words on every device and rank.
#pragma once

#include <stdint.h>

namespace gnn_dist {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// The finalizer of SplitMix64: a bijective mix of 64 bits. Word is uint64_t or a vector of it.
template <class Word>
static inline __attribute__((always_inline)) Word mix(Word z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// What the words of one id start from; key is DrawKey.value.
static inline __attribute__((always_inline)) uint64_t row_key(uint64_t key, uint64_t id) {
  return mix(mix(id + kGolden) ^ key);
}

// The j-th word of a row, j = 0, 1, ...: its low half serves column 2 j, its high half 2 j + 1.
static inline __attribute__((always_inline)) uint64_t word(uint64_t row, uint64_t j) {
  return mix(row + (j + 1) * kGolden);
}

// The id of the k-th copy (from 0) of an edge.
static inline __attribute__((always_inline)) uint64_t edge_id(uint64_t src, uint64_t dst,
                                                              uint64_t copy) {
  return mix(mix(src + kGolden) + dst) + copy;
}

}  // namespace gnn_dist
