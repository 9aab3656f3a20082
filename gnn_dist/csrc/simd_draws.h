// Draws of many columns at once. Included by files in hot/ only, as simd.h is.
#pragma once

#include "draws.h"
#include "simd.h"

namespace GNN_DIST_ISA {

constexpr uint64_t kLaneStart[] = {0,
                                   gnn_dist::kGolden,
                                   gnn_dist::kGolden * 2,
                                   gnn_dist::kGolden * 3,
                                   gnn_dist::kGolden * 4,
                                   gnn_dist::kGolden * 5,
                                   gnn_dist::kGolden * 6,
                                   gnn_dist::kGolden * 7};

// The draws of the columns [column, column + W) of a row: numbers of 32 bits. `column` is even.
template <int W>
GNN_DIST_INLINE vec<uint32_t, W> draw(uint64_t row, int64_t column) {
  const uint64_t start = row + (static_cast<uint64_t>(column) / 2 + 1) * gnn_dist::kGolden;
  if constexpr (W == 1) {
    return static_cast<uint32_t>(gnn_dist::mix(start));
  } else {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a word's low half comes first");
    const auto words = broadcast<uint64_t, W / 2>(start) + load_plain<uint64_t, W / 2>(kLaneStart);
    return bit_cast<vec<uint32_t, W>>(gnn_dist::mix(words));
  }
}

// Uniform numbers in [0, 1), multiples of 2^-24.
template <int W>
GNN_DIST_INLINE vec<float, W> uniform(vec<uint32_t, W> drawn) {
  return convert<float, int32_t, W>(bit_cast<vec<int32_t, W>>(drawn >> 8)) * 0x1p-24f;
}

}  // namespace GNN_DIST_ISA
