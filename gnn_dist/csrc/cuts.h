// What operators and their hot loops agree on about pieces of work.
#pragma once

#include <stdint.h>

namespace gnn_dist {

// Rows of more entries are cut into pieces of this many. Fixed, so that sums do not depend on the
// number of threads.
constexpr int64_t kHubEntries = 8192;

struct RowPiece {
  int64_t row, begin, end;
};

// Which of a kernel's instances serves a storage type.
enum FloatType { kFloat32, kFloat64, kBFloat16, kFloat16, kNumFloatTypes };

}  // namespace gnn_dist
