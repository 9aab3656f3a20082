// The arguments that operators over entries share, and the sharing of their rows among threads.
#pragma once

#include <atomic>
#include <memory>
#include <new>

#include "attention.h"
#include "parallel.h"
#include "pool.h"
#include "schedule.h"

namespace gnn_dist {

constexpr int64_t kAlignment = 64;

// Memory of whole cache lines, or nothing where there is none left.
class Scratch {
 public:
  explicit Scratch(int64_t num_bytes)
      : memory_(new (std::nothrow) char[static_cast<size_t>(num_bytes + kAlignment)]) {}
  void* data() const {
    if (memory_ == nullptr) return nullptr;
    const auto at = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<void*>((at + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  std::unique_ptr<char[]> memory_;
};

// Runs one pass, and puts sums over all rows into first and second, where it has any.
inline void run(const AttentionPass& pass, const AttentionCall& call, const RowCuts& cuts,
         void* first = nullptr, void* second = nullptr) {
  const int64_t scratch_bytes = pass.scratch_bytes(call), block_bytes = pass.block_bytes(call);
  const int64_t slot_bytes = pass.slot_bytes(call);
  const int64_t num_pieces = cuts.num_pieces();
  const int64_t num_slots = cuts.num_ranges() + cuts.num_hubs();
  const std::unique_ptr<char[]> blocks(new char[num_pieces * block_bytes + 1]);
  const std::unique_ptr<char[]> slots(new char[(num_slots + 1) * slot_bytes + 1]());
  std::atomic<bool> valid{true}, has_memory{true};
  const auto with_scratch = [&](const auto& work) {
    const Scratch scratch(scratch_bytes);
    if (scratch.data() == nullptr) {
      has_memory.store(false, std::memory_order_relaxed);
    } else if (!work(scratch.data())) {
      valid.store(false, std::memory_order_relaxed);
    }
  };
  // Pieces first: they are the longest tasks.
  for_each_task(num_pieces + cuts.num_ranges(), [&](int64_t task) {
    with_scratch([&](void* scratch) {
      if (task < num_pieces) {
        const RowPiece& piece = cuts.pieces[task];
        return pass.piece(call, piece.row, piece.begin, piece.end, scratch,
                          blocks.get() + task * block_bytes);
      }
      const int64_t range = task - num_pieces;
      return pass.rows(call, cuts.row_ptr[range], cuts.row_ptr[range + 1], scratch,
                       slots.get() + range * slot_bytes);
    });
  });
  for_each_task(cuts.num_hubs(), [&](int64_t hub) {
    with_scratch([&](void* scratch) {
      const int64_t piece = cuts.hub_ptr[hub];
      pass.finish(call, cuts.pieces[piece].row, scratch, blocks.get() + piece * block_bytes,
                  cuts.hub_ptr[hub + 1] - piece,
                  slots.get() + (cuts.num_ranges() + hub) * slot_bytes);
      return true;
    });
  });
  if (!has_memory) throw std::bad_alloc();
  if (!valid) throw_bad_structure(call.num_cols);
  // One more slot than there are tasks: without rows, sums are zero.
  pass.collect(call, slots.get(), num_slots + 1, first, second);
}

inline int64_t padded_heads(int64_t heads) {
  if (heads > 16) return (heads + 15) / 16 * 16;
  int64_t lanes = 1;
  while (lanes < heads) lanes *= 2;
  return lanes;
}

inline int width_index(int64_t width) {
  int index = 0;
  while (index + 1 < kNumWidths && (int64_t{2} << index) <= width) ++index;
  return index;
}

// What all operators share: the structure, the form of the rows, and the dropout of coefficients.
struct Setting {
  CsrView csr;
  ScalarType dtype;
  FloatType type;
  int64_t heads, width;
  std::unique_ptr<char[]> zeros;

  Setting(const Tensor& indptr, const Tensor& indices, const Tensor& rows_like, int64_t h,
          const char* name)
      : csr(csr_view(indptr, indices)),
        dtype(rows_like.scalar_type()),
        type(float_type(dtype, name)),
        heads(h) {
    check(rows_like.dim() == 2, name, " must have two dimensions, got ", rows_like.dim());
    const int64_t columns = rows_like.size(1);
    check(heads > 0 && heads <= INT32_MAX && columns % heads == 0, "the heads must divide the columns of ", name, ", ",
          columns, ", got ", heads);
    width = columns / heads;
    zeros.reset(new char[static_cast<size_t>(8 * padded_heads(heads))]());
  }
  AttentionCall call(const CsrView& walked, int64_t num_cols, double slope, double scale) const {
    AttentionCall out{};
    out.indptr = walked.indptr;
    out.indices = walked.indices;
    out.nnz = walked.nnz;
    out.num_cols = num_cols;
    out.heads = heads;
    out.lanes = padded_heads(heads);
    out.width = width;
    out.zeros = zeros.get();
    out.slope = slope;
    out.scale = scale;
    return out;
  }
  Matrix rows(const Tensor& tensor, int64_t num_rows, const char* name) const {
    const RowsView view = rows_view(tensor, name);
    check(view.dtype == dtype, name, " must be ", torch::headeronly::toString(dtype), ", got ",
          torch::headeronly::toString(view.dtype));
    check(view.num_rows == num_rows && view.width == heads * width, name, " must be of shape (",
          num_rows, ", ", heads * width, "), got (", view.num_rows, ", ", view.width, ")");
    return {view.data, view.stride};
  }
  // A contiguous tensor of the accumulation dtype.
  void* numbers(const Tensor& tensor, std::vector<int64_t> shape, const char* name) const {
    check_dtype(tensor, accumulate_dtype(dtype), name);
    bool fits = tensor.is_contiguous() && tensor.dim() == static_cast<int64_t>(shape.size());
    for (size_t i = 0; fits && i < shape.size(); ++i) fits = tensor.size(i) == shape[i];
    std::string wanted;
    for (const int64_t size : shape) wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
    check(fits, name, " must be contiguous of shape (", wanted, ")");
    return tensor.data_ptr();
  }
  Tensor new_numbers(const Tensor& like, int64_t rows, int64_t columns) const {
    const ScalarType wide = accumulate_dtype(dtype);
    if (wide == dtype) return new_rows(like, rows, columns);
    return torch::stable::new_empty(like, {rows, columns}, wide);
  }
  bool is_empty() const { return heads * width == 0; }
};

}  // namespace gnn_dist
