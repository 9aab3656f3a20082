// Recursive-matrix edges, as many at once as a vector has lanes.
#include "../synthetic.h"

#include "../simd.h"

namespace GNN_DIST_ISA {

using gnn_dist::RmatCall;

constexpr int kLanes = full_width<uint64_t>;
using Words = vec<uint64_t, kLanes>;

GNN_DIST_INLINE Words all(uint64_t value) { return broadcast<uint64_t, kLanes>(value); }

struct Ends {
  Words src, dst;
  // Goes one level down the matrix; the quadrant follows from a number of 32 bits.
  GNN_DIST_INLINE void descend(const RmatCall& call, Words drawn) {
    const auto first = drawn >= all(call.limit[0]);
    const auto second = drawn >= all(call.limit[1]);
    const auto third = drawn >= all(call.limit[2]);
    // A true comparison is -1.
    src = (src << 1) - bit_cast<Words>(second);
    dst = (dst << 1) - bit_cast<Words>(first ^ second ^ third);
  }
};

GNN_DIST_INLINE Ends draw_ends(const RmatCall& call, Words number) {
  const Words row =
      gnn_dist::mix(gnn_dist::mix(number + gnn_dist::kGolden) ^ all(call.key));
  Ends ends{};
  for (int level = 0; level < call.scale; level += 2) {
    const uint64_t step = (static_cast<uint64_t>(level) / 2 + 1) * gnn_dist::kGolden;
    const Words word = gnn_dist::mix(row + step);
    ends.descend(call, word & all(0xffffffff));
    if (level + 1 < call.scale) ends.descend(call, word >> 32);
  }
  ends.src = call.shuffle(ends.src);
  ends.dst = call.shuffle(ends.dst);
  return ends;
}

template <class Id>
void rmat(const RmatCall& call, int64_t first, int64_t begin, int64_t end, Id* src, Id* dst) {
  Words lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<uint64_t>(i);
  for (int64_t number = begin; number < end; number += kLanes) {
    const Ends ends = draw_ends(call, lane + static_cast<uint64_t>(number));
    const int64_t count = end - number < kLanes ? end - number : kLanes;
    for (int64_t i = 0; i < count; ++i) {
      const Id u = static_cast<Id>(ends.src[i]), v = static_cast<Id>(ends.dst[i]);
      int64_t at = number + i - first;
      if (call.mirrored) {
        at *= 2;
        src[at + 1] = v;
        dst[at + 1] = u;
      }
      src[at] = u;
      dst[at] = v;
    }
  }
}

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
GNN_DIST_TABLE(SyntheticKernels, synthetic) = {GNN_DIST_ISA::rmat<int32_t>};
}  // namespace gnn_dist
