// What the attention operators hand to their hot loops.
#pragma once

#include <stdint.h>

#include "cuts.h"
#include "dispatch.h"

namespace gnn_dist {

struct Matrix {
  void* data = nullptr;
  int64_t stride = 0;  // elements from one row to the next
};

// Which attention coefficients are dropped: ops/draws.py, keep_mask.
struct EdgeDrops {
  bool on = false;
  uint64_t key = 0;
  uint32_t threshold = 0;       // a draw below it drops
  double scale = 1;             // of what is kept
  const int64_t* own_id = nullptr;  // original ids of the walked structure's rows
  const int64_t* far_id = nullptr;  // and of its columns
  bool own_is_dst = true;
};

// One walk over a structure. Its rows are "own", its columns "far": destinations and sources in the
// forward and in the backward's first pass, sources and destinations in the second.
//
// Numbers per head lie in rows of `lanes`, the heads rounded up to a power of two or to a multiple
// of 16, so that vectors of them are aligned with entries.
struct AttentionCall {
  const int64_t* indptr;
  const int32_t* indices;
  int64_t nnz;
  int64_t num_cols;
  int64_t heads;
  int64_t lanes;
  int64_t width;      // columns of a head
  const void* zeros;  // as many as lanes
  double slope;       // of the leaky ReLU for negative values
  double scale;       // of the dot product
  EdgeDrops drops;
  // Of storage type. What each pass reads and writes is said in hot/.
  Matrix far, far_key, own, own_key, grad, result, out, out_second;
  // Of accumulation type, contiguous.
  const void *attention, *attention_second;  // (heads, width)
  const void* far_score;                     // (columns, lanes)
  const void* own_score;                     // (rows, lanes)
  void* own_grad;                            // (rows, lanes)
  int64_t num_dst;                           // rows that own_grad has; the others have none
  int64_t fields;                            // of a state
  void* state;                               // (rows, fields, lanes)
  const void* far_state;                     // (columns, fields, lanes)
};

// What is kept of a destination: the largest score of its softmax and one over the sum of
// exponentials; from the backward's first pass, the inner product of its gradient and output; and
// where scores are sums, its share of them. One far row of it is all that an entry needs.
enum StateField { kLargest, kInverse, kInner, kScore };

// One pass, for rows and for pieces of rows that are too long for one task. `scratch` is of
// scratch_bytes, aligned to 64 bytes; `block`, the state of a piece, of block_bytes; `slot`, of
// slot_bytes, zero at first, holds sums over all rows of a task. False: an index was out of range.
struct AttentionPass {
  int64_t (*scratch_bytes)(const AttentionCall&);
  int64_t (*block_bytes)(const AttentionCall&);
  int64_t (*slot_bytes)(const AttentionCall&);
  bool (*rows)(const AttentionCall&, int64_t row_begin, int64_t row_end, void* scratch,
               void* slot);
  bool (*piece)(const AttentionCall&, int64_t row, int64_t begin, int64_t end, void* scratch,
                void* block);
  void (*finish)(const AttentionCall&, int64_t row, void* scratch, const void* blocks,
                 int64_t num_blocks, void* slot);
  // Adds slots up, in order, and into one or two arrays (heads, width).
  void (*collect)(const AttentionCall&, const void* slots, int64_t num_slots, void* first,
                  void* second);
};

enum PassKind { kForward, kBackwardRows, kBackwardColumns, kNumPasses };

// Vectors inside a head have 1, 2, 4, 8 or 16 elements: an index of passes.
constexpr int kNumWidths = 5;

struct AttentionKernels {
  AttentionPass passes[kNumFloatTypes][kNumWidths][kNumPasses];
};

// Entries' inner products alone.
struct SddmmOfType {
  AttentionPass widths[kNumWidths];
};
struct SddmmKernels {
  SddmmOfType types[kNumFloatTypes];
};

// The inner products of rows of x with one or two vectors (heads, width).
struct ScoresOfWidth {
  void (*scores[kNumWidths])(const AttentionCall&, int64_t row_begin, int64_t row_end,
                             void* far_score, void* state);
};
struct GatScoreKernels {
  ScoresOfWidth types[kNumFloatTypes];
};

GNN_DIST_DECLARE_TABLES(AttentionKernels, gat)
GNN_DIST_DECLARE_TABLES(AttentionKernels, gatv2)
GNN_DIST_DECLARE_TABLES(AttentionKernels, dot_attention)
GNN_DIST_DECLARE_TABLES(GatScoreKernels, gat_scores)
GNN_DIST_DECLARE_TABLES(SddmmKernels, sddmm_loops)

}  // namespace gnn_dist
