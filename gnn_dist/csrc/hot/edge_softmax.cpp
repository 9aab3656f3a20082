// Softmax over each row's entries, and its gradient alpha (g - sum of alpha g).
//
// Entries are copied chunk by chunk to the layout of lanes.h. A row of one chunk, as most are,
// is read once; a longer one twice.
#include "../edge_softmax.h"

#include "../running_softmax.h"

namespace GNN_DIST_ISA {

using gnn_dist::EdgeSoftmaxCall;

constexpr int64_t kChunkNumbers = 1024;

// Copies the numbers of entries [begin, end) to rows of lanes; the last vector is filled up with
// zeros.
template <class S>
GNN_DIST_NOINLINE void gather(const EdgeSoftmaxCall& call, const void* from, int64_t begin,
                              int64_t end, accumulate_t<S>* to) {
  using A = accumulate_t<S>;
  constexpr int W = full_width<A>;
  const S* at = static_cast<const S*>(from) + begin * call.stride + call.first_head;
  const int64_t filled = (end - begin) * call.lanes;
  if (call.stride == call.lanes) {
    int64_t i = 0;
    for (; i + W <= filled; i += W) store_plain<A, W>(to + i, load<S, W>(at + i));
    for (; i < filled; ++i) to[i] = load<S, 1>(at + i);
  } else {
    for (int64_t e = 0; e < end - begin; ++e) {
      for (int64_t h = 0; h < call.lanes; ++h) {
        to[e * call.lanes + h] = h < call.heads ? load<S, 1>(at + e * call.stride + h) : A{0};
      }
    }
  }
  fill(to + filled, (filled + W - 1) / W * W - filled, A{0});
}

template <class S>
GNN_DIST_NOINLINE void scatter(const EdgeSoftmaxCall& call, const accumulate_t<S>* from,
                               int64_t begin, int64_t end) {
  constexpr int W = full_width<accumulate_t<S>>;
  using A = accumulate_t<S>;
  S* at = static_cast<S*>(call.out) + begin * call.stride + call.first_head;
  const int64_t filled = (end - begin) * call.lanes;
  if (call.stride == call.lanes) {
    int64_t i = 0;
    for (; i + W <= filled; i += W) store<S, W>(at + i, load_plain<A, W>(from + i));
    for (; i < filled; ++i) store<S, 1>(at + i, from[i]);
  } else {
    for (int64_t e = 0; e < end - begin; ++e) {
      for (int64_t h = 0; h < call.heads; ++h) {
        store<S, 1>(at + e * call.stride + h, from[e * call.lanes + h]);
      }
    }
  }
}

// Calls f(begin, end) for chunks of entries.
template <class F>
GNN_DIST_INLINE void chunks(const EdgeSoftmaxCall& call, int64_t begin, int64_t end, F f) {
  const int64_t most = kChunkNumbers / call.lanes;
  for (int64_t at = begin; at < end; at += most) f(at, at + most < end ? at + most : end);
}

// A block is the largest scores and the sums; once merged, the sums' inverses.
template <class S>
struct Forward {
  using A = accumulate_t<S>;
  static constexpr int W = full_width<A>;
  static constexpr int64_t kBlock = 2 * gnn_dist::kGroupHeads;

  static void look(const EdgeSoftmaxCall& call, const Lanes<A>& lanes, int64_t begin, int64_t end,
                   const Online<A>& online, A* numbers) {
    A factor[gnn_dist::kGroupHeads];
    gather<S>(call, call.in, begin, end, numbers);
    online.take(lanes, static_cast<int>(end - begin), numbers, factor);
  }
  static void invert(const Lanes<A>& lanes, A* total) {
    for (int64_t i = 0; i < lanes.period; ++i) total[i] = A{1} / total[i];
  }
  static void scale(const Lanes<A>& lanes, const A* inverse, int64_t filled, A* numbers) {
    for (int64_t j = 0; j < filled; j += W) {
      const auto factor = load_plain<A, W>(inverse + lanes.place(j));
      store_plain<A, W>(numbers + j, load_plain<A, W>(numbers + j) * factor);
    }
  }
  static void rows(const EdgeSoftmaxCall& call, int64_t row_begin, int64_t row_end) {
    const Lanes<A> lanes(call.heads, call.lanes);
    A numbers[kChunkNumbers + W], block[kBlock];
    const Online<A> online{block, block + gnn_dist::kGroupHeads};
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t begin = call.indptr[row], end = call.indptr[row + 1];
      if (end - begin > gnn_dist::kHubEntries || begin == end) continue;
      online.clear(lanes);
      chunks(call, begin, end, [&](int64_t first, int64_t last) {
        look(call, lanes, first, last, online, numbers);
      });
      invert(lanes, online.total);
      if ((end - begin) * call.lanes <= kChunkNumbers) {
        scale(lanes, online.total, (end - begin) * call.lanes, numbers);
        scatter<S>(call, numbers, begin, end);
      } else {
        write(call, begin, end, block);
      }
    }
  }
  static void piece(const EdgeSoftmaxCall& call, int64_t begin, int64_t end, void* block) {
    const Lanes<A> lanes(call.heads, call.lanes);
    A numbers[kChunkNumbers + W];
    const Online<A> online{static_cast<A*>(block), static_cast<A*>(block) + gnn_dist::kGroupHeads};
    online.clear(lanes);
    chunks(call, begin, end, [&](int64_t first, int64_t last) {
      look(call, lanes, first, last, online, numbers);
    });
  }
  static void merge(const EdgeSoftmaxCall& call, void* blocks, int64_t num_blocks) {
    const Lanes<A> lanes(call.heads, call.lanes);
    A factor[gnn_dist::kGroupHeads], other_factor[gnn_dist::kGroupHeads];
    A* block = static_cast<A*>(blocks);
    const Online<A> online{block, block + gnn_dist::kGroupHeads};
    for (int64_t i = 1; i < num_blocks; ++i) {
      A* other = block + i * gnn_dist::kEdgeBlockBytes / static_cast<int64_t>(sizeof(A));
      online.merge(lanes, Online<A>{other, other + gnn_dist::kGroupHeads}, factor, other_factor);
    }
    invert(lanes, online.total);
  }
  static void write(const EdgeSoftmaxCall& call, int64_t begin, int64_t end, const void* block) {
    const Lanes<A> lanes(call.heads, call.lanes);
    A numbers[kChunkNumbers + W];
    const A *largest = static_cast<const A*>(block), *inverse = largest + gnn_dist::kGroupHeads;
    chunks(call, begin, end, [&](int64_t first, int64_t last) {
      gather<S>(call, call.in, first, last, numbers);
      for (int64_t j = 0; j < (last - first) * call.lanes; j += W) {
        const auto from = load_plain<A, W>(largest + lanes.place(j));
        store_plain<A, W>(numbers + j,
                          exponential<A, W>(load_plain<A, W>(numbers + j) - from));
      }
      scale(lanes, inverse, (last - first) * call.lanes, numbers);
      scatter<S>(call, numbers, first, last);
    });
  }
};

// A block is the sums of alpha g.
template <class S>
struct Backward {
  using A = accumulate_t<S>;
  static constexpr int W = full_width<A>;

  static void rows(const EdgeSoftmaxCall& call, int64_t row_begin, int64_t row_end) {
    A block[gnn_dist::kGroupHeads];
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t begin = call.indptr[row], end = call.indptr[row + 1];
      if (end - begin > gnn_dist::kHubEntries) continue;
      piece(call, begin, end, block);
      merge(call, block, 1);
      write(call, begin, end, block);
    }
  }
  static void piece(const EdgeSoftmaxCall& call, int64_t begin, int64_t end, void* block) {
    const Lanes<A> lanes(call.heads, call.lanes);
    A alpha[kChunkNumbers + W], grad[kChunkNumbers + W];
    A* sums = static_cast<A*>(block);
    fill(sums, lanes.period, A{0});
    chunks(call, begin, end, [&](int64_t first, int64_t last) {
      gather<S>(call, call.in, first, last, alpha);
      gather<S>(call, call.grad, first, last, grad);
      for (int64_t j = 0; j < (last - first) * call.lanes; j += W) {
        lanes.add(sums, j, last - first, load_plain<A, W>(alpha + j) * load_plain<A, W>(grad + j));
      }
    });
  }
  static void merge(const EdgeSoftmaxCall& call, void* blocks, int64_t num_blocks) {
    const Lanes<A> lanes(call.heads, call.lanes);
    A* sums = static_cast<A*>(blocks);
    for (int64_t i = 1; i < num_blocks; ++i) {
      add_to(sums, sums + i * gnn_dist::kEdgeBlockBytes / static_cast<int64_t>(sizeof(A)),
             lanes.period);
    }
    lanes.fold_sums(sums);
  }
  static void write(const EdgeSoftmaxCall& call, int64_t begin, int64_t end, const void* block) {
    const Lanes<A> lanes(call.heads, call.lanes);
    A alpha[kChunkNumbers + W], grad[kChunkNumbers + W];
    const A* sums = static_cast<const A*>(block);
    chunks(call, begin, end, [&](int64_t first, int64_t last) {
      gather<S>(call, call.in, first, last, alpha);
      gather<S>(call, call.grad, first, last, grad);
      for (int64_t j = 0; j < (last - first) * call.lanes; j += W) {
        const auto part = load_plain<A, W>(grad + j) - load_plain<A, W>(sums + lanes.place(j));
        store_plain<A, W>(grad + j, load_plain<A, W>(alpha + j) * part);
      }
      scatter<S>(call, grad, first, last);
    });
  }
};

template <class Loops>
constexpr gnn_dist::EdgeLoops loops = {Loops::rows, Loops::piece, Loops::merge, Loops::write};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(EdgeSoftmaxKernels, edge_softmax_loops) = {
    {loops<Forward<float>>, loops<Forward<double>>, loops<Forward<bf16>>, loops<Forward<f16>>},
    {loops<Backward<float>>, loops<Backward<double>>, loops<Backward<bf16>>,
     loops<Backward<f16>>}};
}  // namespace gnn_dist
