// What the row movement operators hand to their hot loops.
#pragma once

#include <stdint.h>

#include "dispatch.h"

namespace gnn_dist {

// out[k] = x[index[k]]. Strides and width count elements; those of the copying loop, bytes.
struct GatherCall {
  const void* x;
  int64_t num_rows;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  int64_t width;
  const void* index;
  int64_t num_index;
};

// out[index[k]] += rows[k]. All of the index lies in [0, number of rows of out).
struct ScatterCall {
  void* out;
  int64_t out_stride;
  const void* rows;
  int64_t rows_stride;
  int64_t width;
  const void* index;
  int64_t num_index;
};

// False: an index was out of range.
using GatherLoop = bool (*)(const GatherCall&, int64_t begin, int64_t end);
// Adds to the rows [first, last) of out, rounding after each addition.
using ScatterLoop = void (*)(const ScatterCall&, int64_t first, int64_t last);
// Adds the entries order[begin, end), which are sorted by destination, rounding each row once.
using SortedLoop = void (*)(const ScatterCall&, const int64_t* order, int64_t begin, int64_t end);
// Whether all of index[begin, end) lies in [0, num_rows).
using CheckLoop = bool (*)(const void* index, int64_t begin, int64_t end, int64_t num_rows);

struct IndexedLoops {
  GatherLoop copy;
  GatherLoop stream;  // for rows that are whole cache lines, where the result is large
  GatherLoop convert[4][4];  // from, to
  ScatterLoop scatter_add[2];  // float32, float64
  SortedLoop add_sorted[2];    // bfloat16, float16
  CheckLoop in_range;
};

struct RowKernels {
  IndexedLoops by_int64, by_int32;
};

GNN_DIST_DECLARE_TABLES(RowKernels, rows)

}  // namespace gnn_dist
