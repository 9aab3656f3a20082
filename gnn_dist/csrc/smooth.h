// What the smoothed local search hands to its hot loop.
#pragma once

#include <stdint.h>

#include "dispatch.h"

namespace gnn_dist {

struct SmoothCall {
  const int64_t* indptr;
  const int32_t* indices;
  int64_t nnz;
  const uint8_t* count;  // (nodes, parts): pins of each node's net in each part, 255 or more alike
  const int32_t* part;
  int64_t num_parts;
  const float* table;  // (256,): what a count costs a pin that comes
};

struct SmoothLoops {
  // For nodes [begin, end): cost (parts,) is scratch; to[v - begin] is the part where v costs
  // least, and gain[v - begin] how much less than where it is.
  void (*propose)(const SmoothCall&, int64_t begin, int64_t end, float* cost, int32_t* to,
                  float* gain);
};

GNN_DIST_DECLARE_TABLES(SmoothLoops, smooth)

}  // namespace gnn_dist
