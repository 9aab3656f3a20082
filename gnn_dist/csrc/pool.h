// Large buffers that are used again instead of returned to the system.
#pragma once

#include "tensors.h"

namespace gnn_dist {

// An uninitialised matrix on the CPU. A large one comes from the pool and goes back there when its
// last reference dies.
Tensor new_rows(const Tensor& like, int64_t num_rows, int64_t width, ScalarType dtype);

inline Tensor new_rows(const Tensor& like, int64_t num_rows, int64_t width) {
  return new_rows(like, num_rows, width, like.scalar_type());
}

}  // namespace gnn_dist
