// What the softmax over rows' entries hands to its hot loops.
#pragma once

#include <stdint.h>

#include "cuts.h"
#include "dispatch.h"

namespace gnn_dist {

// Heads are worked on in groups of at most this many.
constexpr int64_t kGroupHeads = 64;

// The entries' numbers (nnz, stride): scores and their softmax, or the softmax, its gradient and the
// scores' gradient. Only the columns from first_head on are meant.
struct EdgeSoftmaxCall {
  const int64_t* indptr;
  int64_t stride;
  int64_t first_head;
  int64_t heads;
  int64_t lanes;  // heads rounded up to a power of two
  const void* in;
  const void* grad;
  void* out;
};

// Rows in one go, and rows that are too long for one task in steps: each piece into a block; blocks
// of a row into the first of them; each piece again, with that one.
struct EdgeLoops {
  void (*rows)(const EdgeSoftmaxCall&, int64_t row_begin, int64_t row_end);
  void (*piece)(const EdgeSoftmaxCall&, int64_t begin, int64_t end, void* block);
  void (*merge)(const EdgeSoftmaxCall&, void* blocks, int64_t num_blocks);
  void (*write)(const EdgeSoftmaxCall&, int64_t begin, int64_t end, const void* block);
};

// Two numbers of eight bytes for each head of a group.
constexpr int64_t kEdgeBlockBytes = 2 * 8 * kGroupHeads;

struct EdgeSoftmaxKernels {
  EdgeLoops forward[kNumFloatTypes], backward[kNumFloatTypes];
};

GNN_DIST_DECLARE_TABLES(EdgeSoftmaxKernels, edge_softmax_loops)

}  // namespace gnn_dist
