// Softmax over each row's entries: argument checks, and the sharing of rows among threads.
#include "edge_softmax.h"

#include <memory>

#include "parallel.h"
#include "pool.h"
#include "schedule.h"

namespace gnn_dist {

namespace {

void run(const EdgeLoops& loops, const EdgeSoftmaxCall& call, const RowCuts& cuts) {
  const int64_t num_pieces = cuts.num_pieces();
  const std::unique_ptr<char[]> blocks(new char[num_pieces * kEdgeBlockBytes + 1]);
  const auto block = [&](int64_t piece) { return blocks.get() + piece * kEdgeBlockBytes; };
  // Pieces first: they are the longest tasks.
  for_each_task(num_pieces + cuts.num_ranges(), [&](int64_t task) {
    if (task < num_pieces) {
      loops.piece(call, cuts.pieces[task].begin, cuts.pieces[task].end, block(task));
    } else {
      const int64_t range = task - num_pieces;
      loops.rows(call, cuts.row_ptr[range], cuts.row_ptr[range + 1]);
    }
  });
  std::vector<int64_t> first_of(num_pieces);
  for (int64_t hub = 0; hub < cuts.num_hubs(); ++hub) {
    const int64_t first = cuts.hub_ptr[hub], last = cuts.hub_ptr[hub + 1];
    loops.merge(call, block(first), last - first);
    for (int64_t piece = first; piece < last; ++piece) first_of[piece] = first;
  }
  for_each_task(num_pieces, [&](int64_t task) {
    loops.write(call, cuts.pieces[task].begin, cuts.pieces[task].end, block(first_of[task]));
  });
}

int64_t power_of_two(int64_t heads) {
  int64_t lanes = 1;
  while (lanes < heads) lanes *= 2;
  return lanes;
}

const void* entries(const Tensor& numbers, const Tensor& like, const char* name) {
  check(numbers.dim() == 2 && numbers.is_contiguous() && numbers.size(0) == like.size(0) &&
            numbers.size(1) == like.size(1) && numbers.scalar_type() == like.scalar_type(),
        name, " must be contiguous of shape (", like.size(0), ", ", like.size(1),
        ") and of one dtype");
  return numbers.data_ptr();
}

Tensor apply(const Tensor& indptr, const Tensor& in, const OptionalTensor& grad, const char* name) {
  const auto* offsets = flat<int64_t>(indptr, ScalarType::Long, "indptr");
  check(indptr.size(0) > 0, "indptr must have at least one element");
  check(in.dim() == 2, name, " must have two dimensions, got ", in.dim());
  const CsrView csr{offsets, nullptr, indptr.size(0) - 1, in.size(0)};
  check_index(offsets[0] == 0 && offsets[csr.num_rows] == csr.nnz, "indptr must run from 0 to ",
              csr.nnz, ", the number of entries, got ", offsets[0], " to ", offsets[csr.num_rows]);
  const FloatType type = float_type(in.scalar_type(), name);
  const Tensor out = new_rows(in, csr.nnz, in.size(1));
  EdgeSoftmaxCall call{};
  call.indptr = offsets;
  call.stride = in.size(1);
  call.in = entries(in, in, name);
  call.grad = grad.has_value() ? entries(*grad, in, "grad") : nullptr;
  call.out = out.data_ptr();
  const EdgeSoftmaxKernels& kernels = GNN_DIST_KERNELS(edge_softmax_loops);
  const RowCuts cuts(csr);
  for (int64_t first = 0; first < call.stride; first += kGroupHeads) {
    call.first_head = first;
    call.heads = std::min(kGroupHeads, call.stride - first);
    call.lanes = power_of_two(call.heads);
    run(grad.has_value() ? kernels.backward[type] : kernels.forward[type], call, cuts);
  }
  return out;
}

Tensor edge_softmax(Tensor indptr, Tensor scores) {
  return apply(indptr, scores, std::nullopt, "scores");
}

Tensor edge_softmax_grad(Tensor indptr, Tensor alpha, Tensor grad) {
  return apply(indptr, alpha, grad, "alpha");
}

}  // namespace

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("edge_softmax(Tensor indptr, Tensor scores) -> Tensor");
  m.def("edge_softmax_grad(Tensor indptr, Tensor alpha, Tensor grad) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("edge_softmax", TORCH_BOX(&gnn_dist::edge_softmax));
  m.impl("edge_softmax_grad", TORCH_BOX(&gnn_dist::edge_softmax_grad));
}
