// What the quantisation operators hand to their hot loops.
#pragma once

#include <stdint.h>

#include "dispatch.h"

namespace gnn_dist {

struct QuantizeCall {
  void* x;  // rows, read or written
  int64_t x_stride;
  int64_t width;
  const int64_t* ids;
  uint64_t key;
  int bits;
  uint8_t* packed;
  int64_t packed_stride;
  float* params;  // (n, 2): minimum and step
  bool add;       // dequantised values into x
};

using QuantizeLoop = void (*)(const QuantizeCall&, int64_t begin, int64_t end);

struct QuantizeKernels {
  QuantizeLoop quantize[4], dequantize[4];
};

GNN_DIST_DECLARE_TABLES(QuantizeKernels, quantize)

}  // namespace gnn_dist
