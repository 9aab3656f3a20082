// Rows walked from left to right by vectors. Included by files in hot/ only, as simd.h is.
#pragma once

#include "simd.h"

namespace GNN_DIST_ISA {

template <int W, class Step>
GNN_DIST_INLINE void cover_rest(int64_t column, int64_t width, Step& step) {
  if (width - column >= W) {
    step.template at<W>(column);
    column += W;
  }
  if constexpr (W > 1) cover_rest<W / 2>(column, width, step);
}

// Calls step.at<V>(column) for vectors of V = W and then of smaller powers of two elements, which
// cover the columns [0, width) once each. All of them but the last start at an even column.
template <int W, class Step>
GNN_DIST_INLINE void cover_columns(int64_t width, Step step) {
  int64_t column = 0;
  for (; width - column >= W; column += W) step.template at<W>(column);
  if constexpr (W > 1) cover_rest<W / 2>(column, width, step);
}

}  // namespace GNN_DIST_ISA
