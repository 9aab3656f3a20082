// What each part would cost a node: sums over its nets, for all parts side by side.
#include "../smooth.h"

#include "../simd.h"

namespace GNN_DIST_ISA {

using gnn_dist::SmoothCall;

constexpr int64_t kEntriesAhead = 16;

GNN_DIST_INLINE void add_net(const SmoothCall& call, int64_t net, int32_t own, float* cost) {
  const uint8_t* count = call.count + net * call.num_parts;
  for (int64_t p = 0; p < call.num_parts; ++p) cost[p] += call.table[count[p]];
  // Without the node itself, where there are not too many pins for one to matter.
  const uint8_t here = count[own];
  if (here > 0 && here < 255) cost[own] += call.table[here - 1] - call.table[here];
}

void propose(const SmoothCall& call, int64_t begin, int64_t end, float* cost, int32_t* to,
             float* gain) {
  const int64_t last_entry = call.nnz - 1;
  for (int64_t v = begin; v < end; ++v) {
    const int32_t own = call.part[v];
    for (int64_t p = 0; p < call.num_parts; ++p) cost[p] = 0;
    add_net(call, v, own, cost);
    int64_t before = -1;
    for (int64_t e = call.indptr[v]; e < call.indptr[v + 1]; ++e) {
      const int64_t next = e + kEntriesAhead < last_entry ? e + kEntriesAhead : last_entry;
      __builtin_prefetch(call.count + call.indices[next] * call.num_parts);
      const int32_t net = call.indices[e];
      if (net != before && net != v) add_net(call, net, own, cost);
      before = net;
    }
    int32_t best = own;
    for (int32_t p = 0; p < call.num_parts; ++p) {
      if (cost[p] < cost[best]) best = p;
    }
    to[v - begin] = best;
    gain[v - begin] = cost[own] - cost[best];
  }
}

}  // namespace GNN_DIST_ISA

namespace gnn_dist {

GNN_DIST_TABLE(SmoothLoops, smooth) = {GNN_DIST_ISA::propose};

}  // namespace gnn_dist
