// Attention whose score is not a sum over the ends: score = <att[h], leaky_relu(z)>, where
// z = x_src[c, h] + x_dst[r, h], and value = x_src[c, h].
//
// With the names of gat.cpp, and s the slopes of the leaky ReLU at z, element by element:
//
//   gradient of a score   t = alpha (m d - inner)
//   by rows      grad x_dst[r] = att sum t s;  grad att = sum over all entries of t s z
//   by columns   grad x_src[c] = sum alpha m g[r] + att sum t s
#include "../entry_batch.h"

namespace GNN_DIST_ISA {

// Reads far = x_src, own = x_dst, attention; writes out and state.
template <class S, int W>
struct GatV2Forward {
  using A = accumulate_t<S>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size = 0;
  A* const block;
  const Online<A> online;
  A* const sums;
  A *const own, *const att, *const scores, *const factor, *const other_factor;
  uint32_t* const halves;

  GatV2Forward(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(2 * lanes.period + heads.size()),
        block(carver.take<A>(block_size)),
        online{block, part_of(block, lanes.period)},
        sums(part_of(block, 2 * lanes.period)),
        own(carver.take<A>(heads.size())),
        att(carver.take<A>(heads.size())),
        scores(carver.take<A>(lanes.size)),
        factor(carver.take<A>(lanes.period)),
        other_factor(carver.take<A>(lanes.period)),
        halves(carver.take<uint32_t>(lanes.size)) {
    if (block != nullptr) heads.pack_factor(static_cast<const A*>(call.attention), att);
  }

  GNN_DIST_NOINLINE void clear() const {
    online.clear(lanes);
    fill(sums, heads.size(), A{0});
  }
  GNN_DIST_NOINLINE void open(int64_t row) const {
    heads.pack(static_cast<const S*>(call.own.data) + row * call.own.stride, own);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    const FarRows<S> x(call, call.far, batch);
    heads.leaky_dots(x, own, att, static_cast<A>(call.slope), batch.count, scores);
    online.take(lanes, batch.count, scores, factor);
    drop(call, batch, halves, scores);
    heads.template add<true, false>(x, scores, factor, batch.count, sums);
  }
  GNN_DIST_NOINLINE void merge(const A* other) const {
    merge_softmax(lanes, heads, online, sums, other, factor, other_factor);
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    save_softmax(call, lanes, online, row, factor);
    save_scaled(call, heads, row, sums, factor);
  }
  void collect(const A*, A*, A*) const {}
};

// Reads far = x_src, own = x_dst, attention, state, grad, result; writes out = grad x_dst and the
// inner product in state. Slots hold the gradient of att.
template <class S, int W>
struct GatV2BackwardRows {
  using A = accumulate_t<S>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size;
  A* const block;
  A *const steep, *const leaky;  // sums of t s, t s z
  A *const own, *const att;
  const RowGradient<A> gradient;
  A *const scores, *const dots, *const masks;
  uint32_t* const halves;

  GatV2BackwardRows(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(2 * heads.size()),
        slot_size(heads.size()),
        block(carver.take<A>(block_size)),
        steep(block),
        leaky(part_of(block, heads.size())),
        own(carver.take<A>(heads.size())),
        att(carver.take<A>(heads.size())),
        gradient(lanes, heads.size(), carver),
        scores(carver.take<A>(lanes.size)),
        dots(carver.take<A>(lanes.size)),
        masks(carver.take<A>(lanes.size)),
        halves(carver.take<uint32_t>(lanes.size)) {
    if (block != nullptr) heads.pack_factor(static_cast<const A*>(call.attention), att);
  }

  GNN_DIST_NOINLINE void clear() const { fill(block, block_size, A{0}); }
  GNN_DIST_NOINLINE void open(int64_t row) const {
    heads.pack(static_cast<const S*>(call.own.data) + row * call.own.stride, own);
    gradient.template load<S, W>(call, lanes, heads, row);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    const FarRows<S> x(call, call.far, batch);
    const A slope = static_cast<A>(call.slope);
    heads.leaky_dots(x, own, att, slope, batch.count, scores);
    heads.dots(x, gradient.factor, batch.count, dots);
    fill(masks, lanes.size, A{1});
    drop(call, batch, halves, masks);
    score_gradients(lanes, batch.count, gradient.softmax(), dots, scores, masks);
    heads.template leaky_add<true>(x, own, scores, slope, batch.count, steep, leaky);
  }
  GNN_DIST_NOINLINE void merge(const A* other) const { add_to(block, other, block_size); }
  GNN_DIST_NOINLINE void finish(int64_t row, A* slot) const {
    gradient.save(call, lanes, row);
    add_to(slot, leaky, heads.size());
    for (int64_t i = 0; i < heads.size(); ++i) steep[i] *= att[i];
    heads.unpack(steep, static_cast<S*>(call.out.data) + row * call.out.stride);
  }
  void collect(const A* slot, A* first, A*) const { heads.unpack(slot, first); }
};

// By columns: far = gradients, far_key = x_dst and far_state of destinations, own = x_src,
// attention. Writes out = grad x_src.
template <class S, int W>
struct GatV2BackwardColumns {
  using A = accumulate_t<S>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size = 0;
  A* const block;
  A *const sums, *const steep;
  A *const own, *const own_factor, *const att;
  const FarState<A> state;
  A *const scores, *const dots, *const masks;
  uint32_t* const halves;

  GatV2BackwardColumns(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(2 * heads.size()),
        block(carver.take<A>(block_size)),
        sums(block),
        steep(part_of(block, heads.size())),
        own(carver.take<A>(heads.size())),
        own_factor(carver.take<A>(heads.size())),
        att(carver.take<A>(heads.size())),
        state(lanes, carver),
        scores(carver.take<A>(lanes.size)),
        dots(carver.take<A>(lanes.size)),
        masks(carver.take<A>(lanes.size)),
        halves(carver.take<uint32_t>(lanes.size)) {
    if (block != nullptr) heads.pack_factor(static_cast<const A*>(call.attention), att);
  }

  GNN_DIST_NOINLINE void clear() const { fill(block, block_size, A{0}); }
  GNN_DIST_NOINLINE void open(int64_t row) const {
    const S* x = static_cast<const S*>(call.own.data) + row * call.own.stride;
    heads.pack(x, own);
    heads.pack_factor(x, own_factor);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    state.load(call, lanes, batch);
    const FarRows<S> grad(call, call.far, batch), x(call, call.far_key, batch);
    const A slope = static_cast<A>(call.slope);
    heads.dots(grad, own_factor, batch.count, dots);
    heads.leaky_dots(x, own, att, slope, batch.count, scores);
    fill(masks, lanes.size, A{1});
    drop(call, batch, halves, masks);
    score_gradients(lanes, batch.count, state.softmax(), dots, scores, masks);
    heads.template add<false, false>(grad, masks, nullptr, batch.count, sums);
    heads.template leaky_add<false>(x, own, scores, slope, batch.count, steep, nullptr);
  }
  GNN_DIST_NOINLINE void merge(const A* other) const { add_to(block, other, block_size); }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    for (int64_t i = 0; i < heads.size(); ++i) sums[i] += att[i] * steep[i];
    heads.unpack(sums, static_cast<S*>(call.out.data) + row * call.out.stride);
  }
  void collect(const A*, A*, A*) const {}
};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(AttentionKernels, gatv2) = {GNN_DIST_ATTENTION_PASSES(GatV2)};
}  // namespace gnn_dist
