// What the quantisation operators hand to their hot loops.
#pragma once

#include <stdint.h>

#include "dispatch.h"

namespace gnn_dist {

constexpr int64_t kGridBytes = 4;  // of a packed row, before its levels: smallest value and step

struct QuantizeCall {
  void* x;  // rows, read or written
  int64_t num_rows;
  int64_t x_stride;
  int64_t width;
  const int64_t* index;  // which rows of x are packed; nullptr for all
  int64_t num_packed;
  const int64_t* ids;
  uint64_t key;
  int bits;
  uint8_t* packed;  // rows of kGridBytes and of levels
  int64_t packed_stride;
  bool add;  // dequantised values into x
};

// Whether every index was in range; rows [begin, end) of the packed ones.
using QuantizeLoop = bool (*)(const QuantizeCall&, int64_t begin, int64_t end);
using DequantizeLoop = void (*)(const QuantizeCall&, int64_t begin, int64_t end);

struct QuantizeKernels {
  QuantizeLoop quantize[4];
  DequantizeLoop dequantize[4];
};

GNN_DIST_DECLARE_TABLES(QuantizeKernels, quantize)

}  // namespace gnn_dist
