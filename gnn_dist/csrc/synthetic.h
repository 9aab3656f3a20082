// Edges of random graphs by their number, defined in ops/reference/synthetic.py.
#pragma once

#include <stdint.h>

#include "dispatch.h"
#include "draws.h"

namespace gnn_dist {

constexpr int kShuffleRounds = 3;

// A bijection of the numbers of `bits` bits, by a key. Word is uint64_t or a vector of it.
struct Shuffle {
  uint64_t mask;
  int bits;
  uint64_t factor[kShuffleRounds], term[kShuffleRounds];

  template <class Word>
  inline __attribute__((always_inline)) Word operator()(Word x) const {
    for (int i = 0; i < kShuffleRounds; ++i) {
      x = (x * factor[i] + term[i]) & mask;
      x ^= x >> ((bits + 1) / 2);
    }
    return x;
  }
};

// Edges are drawn from (key, number). With `mirrored`, the edges 2 k and 2 k + 1 are the k-th draw
// and its reverse.
struct RmatCall {
  int scale;
  uint64_t limit[3];  // a, a + b and a + b + c, times 2^32
  uint64_t key;
  bool mirrored;
  Shuffle shuffle;
};

struct SyntheticKernels {
  // Writes the edges of the draws [begin, end), at [begin - first, ...) of draws.
  void (*rmat32)(const RmatCall& call, int64_t first, int64_t begin, int64_t end, int32_t* src,
                 int32_t* dst);
};

GNN_DIST_DECLARE_TABLES(SyntheticKernels, synthetic)

}  // namespace gnn_dist
