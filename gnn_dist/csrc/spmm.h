// What the aggregation operators hand to their hot loops.
#pragma once

#include <stdint.h>

#include "cuts.h"
#include "dispatch.h"

namespace gnn_dist {

// A_ij = dst_scale_i * weight_e * src_scale_j for the entry e at row i and column j; missing factors
// are one. Factors have the accumulation dtype of x.
struct SpmmCall {
  const int64_t* indptr;
  const int32_t* indices;
  int64_t nnz;
  int64_t ahead;  // entries between asking for a source row and using it
  const void* x;
  const void* second;  // a second source with the strides of x (where-equal)
  int64_t num_cols;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  const void* weight;
  int64_t weight_stride;  // from one entry to the next: the number of heads
  int64_t head;
  const int32_t* position;  // where an entry's weight is, or null
  const void* src_scale;
  const void* dst_scale;
  const void* own;  // a row's own values (where-equal)
  int64_t own_stride;
  bool add;         // into what out holds
  int32_t* count;   // for extremes: how many entries reach the value, with the strides of out
};

struct Columns {
  int64_t first;
  int64_t width;
};

// Loops over the entries of whole rows, and of pieces of rows that are too long for one task.
// False: an index was out of range.
struct SpmmLoops {
  bool (*rows)(const SpmmCall&, Columns, int64_t row_begin, int64_t row_end);
  bool (*piece)(const SpmmCall&, Columns, RowPiece, void* partial);
  void (*finish)(const SpmmCall&, Columns, int64_t row, const void* partials, int64_t num_pieces);
};

enum SpmmReduce { kSum, kMax, kMin, kWhereEqual, kNumReduces };

// out = grad / count.
struct ShareCall {
  const void* grad;
  int64_t grad_stride;
  const int32_t* count;
  int64_t count_stride;
  void* out;  // contiguous
  int64_t width;
};

struct SpmmKernels {
  SpmmLoops loops[kNumFloatTypes][kNumReduces];
  void (*share[kNumFloatTypes])(const ShareCall&, int64_t row_begin, int64_t row_end);
};

// Vectors of a panel: those of its sum stay in registers, of which AVX-512 has twice as many.
constexpr int max_vectors(int64_t vector_bytes) { return vector_bytes == 64 ? 16 : 8; }
// A partial result of one piece: vectors of values, and as many of counts.
constexpr int64_t kPartialBytes = 2 * 16 * 64;
// What is asked for and not yet used: enough to hide the memory's latency, far from filling a cache.
constexpr int64_t kBytesAhead = 16384;
constexpr int64_t kLeastAhead = 8, kMostAhead = 32;

GNN_DIST_DECLARE_TABLES(SpmmKernels, spmm)

}  // namespace gnn_dist
