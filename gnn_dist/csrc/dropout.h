// What the operators on draws hand to their hot loops.
#pragma once

#include <stdint.h>

#include "dispatch.h"

namespace gnn_dist {

// Forward: out = relu(x + bias) * scale * keep. Backward: x is the gradient of that, and `result`
// what the forward returned, if it had a ReLU.
struct DropoutCall {
  const void* x;
  int64_t x_stride;
  void* out;  // may be x
  int64_t out_stride;
  int64_t width;
  const void* bias;  // of the accumulation dtype, or null
  const void* result;
  int64_t result_stride;
  const int64_t* ids;
  uint64_t key;
  bool draws;      // false: everything is kept
  uint32_t limit;  // kept: draws above it
  bool relu;
  double scale;
};

struct DropoutLoops {
  void (*forward)(const DropoutCall&, int64_t begin, int64_t end);
  // Adds up columns over the rows [begin, end) into column_sum, of the accumulation dtype; or null.
  void (*backward)(const DropoutCall&, int64_t begin, int64_t end, void* column_sum);
  // sum[column] = the sum over blocks of column_sum[block * width + column].
  void (*add_blocks)(const void* column_sum, int64_t num_blocks, int64_t width, int64_t begin,
                     int64_t end, void* sum);
};

struct DropoutKernels {
  DropoutLoops loops[4];
  // keep (n, width): draws above limit.
  void (*keep)(const int64_t* ids, uint64_t key, uint32_t limit, int64_t width, int64_t begin,
               int64_t end, bool* keep);
  void (*uniform)(const int64_t* ids, uint64_t key, int64_t begin, int64_t end, double* out);
  void (*edge_ids)(const int64_t* src, const int64_t* dst, const int64_t* copy, int64_t begin,
                   int64_t end, int64_t* out);
};

// Rows of one task. Fixed, because the sums of columns are added up block by block.
constexpr int64_t kDropoutBlock = 256;

GNN_DIST_DECLARE_TABLES(DropoutKernels, dropout)

}  // namespace gnn_dist
