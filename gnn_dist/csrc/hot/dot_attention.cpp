// Dot-product attention: score = scale <q[r, h], k[c, h]>, value = v[c, h].
//
// With alpha = softmax(score), mask m, g the gradient of the output, d = <g[r, h], v[c, h]> and
// inner = <g[r, h], out[r, h]>:
//
//   gradient of a score   t = alpha (m d - inner)
//   by rows      grad q[r] = scale sum t k[c]
//   by columns   grad v[c] = sum alpha m g[r];  grad k[c] = scale sum t q[r]
#include "../entry_batch.h"

namespace GNN_DIST_ISA {

// A row as a packed factor, times the scale.
template <class S, int W>
GNN_DIST_INLINE void pack_scaled(const AttentionCall& call, const Heads<S, W>& heads,
                                 const gnn_dist::Matrix& matrix, int64_t row,
                                 accumulate_t<S>* to) {
  heads.pack_factor(static_cast<const S*>(matrix.data) + row * matrix.stride, to);
  for (int64_t i = 0; i < heads.size(); ++i) to[i] *= static_cast<accumulate_t<S>>(call.scale);
}

// Reads far = v, far_key = k, own = q; writes out and state.
template <class S, int W>
struct DotForward {
  using A = accumulate_t<S>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size = 0;
  A* const block;
  const Online<A> online;
  A* const sums;
  A *const query, *const scores, *const factor, *const other_factor;
  uint32_t* const halves;

  DotForward(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(2 * lanes.period + heads.size()),
        block(carver.take<A>(block_size)),
        online{block, part_of(block, lanes.period)},
        sums(part_of(block, 2 * lanes.period)),
        query(carver.take<A>(heads.size())),
        scores(carver.take<A>(lanes.size)),
        factor(carver.take<A>(lanes.period)),
        other_factor(carver.take<A>(lanes.period)),
        halves(carver.take<uint32_t>(lanes.size)) {}

  GNN_DIST_NOINLINE void clear() const {
    online.clear(lanes);
    fill(sums, heads.size(), A{0});
  }
  GNN_DIST_NOINLINE void open(int64_t row) const { pack_scaled(call, heads, call.own, row, query); }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    heads.dots(FarRows<S>(call, call.far_key, batch), query, batch.count, scores);
    online.take(lanes, batch.count, scores, factor);
    drop(call, batch, halves, scores);
    heads.template add<true, true>(FarRows<S>(call, call.far, batch), scores, factor, batch.count,
                                   sums);
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

// Reads far = v, far_key = k, own = q, state, grad, result; writes out = grad q and the inner
// product in state.
template <class S, int W>
struct DotBackwardRows {
  using A = accumulate_t<S>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size = 0;
  A* const block;
  A* const query;
  const RowGradient<A> gradient;
  A *const scores, *const dots, *const masks;
  uint32_t* const halves;

  DotBackwardRows(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(heads.size()),
        block(carver.take<A>(block_size)),
        query(carver.take<A>(heads.size())),
        gradient(lanes, heads.size(), carver),
        scores(carver.take<A>(lanes.size)),
        dots(carver.take<A>(lanes.size)),
        masks(carver.take<A>(lanes.size)),
        halves(carver.take<uint32_t>(lanes.size)) {}

  GNN_DIST_NOINLINE void clear() const { fill(block, block_size, A{0}); }
  GNN_DIST_NOINLINE void open(int64_t row) const {
    pack_scaled(call, heads, call.own, row, query);
    gradient.template load<S, W>(call, lanes, heads, row);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    const FarRows<S> key(call, call.far_key, batch), value(call, call.far, batch);
    heads.dots(key, query, batch.count, scores);
    heads.dots(value, gradient.factor, batch.count, dots);
    fill(masks, lanes.size, A{1});
    drop(call, batch, halves, masks);
    score_gradients(lanes, batch.count, gradient.softmax(), dots, scores, masks);
    heads.template add<false, false>(key, scores, nullptr, batch.count, block);
  }
  GNN_DIST_NOINLINE void merge(const A* other) const { add_to(block, other, block_size); }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    gradient.save(call, lanes, row);
    for (int64_t i = 0; i < block_size; ++i) block[i] *= static_cast<A>(call.scale);
    heads.unpack(block, static_cast<S*>(call.out.data) + row * call.out.stride);
  }
  void collect(const A*, A*, A*) const {}
};

// By columns: far = gradients, far_key = q and far_state of destinations, own = v, own_key = k.
// Writes out = grad v and out_second = grad k.
template <class S, int W>
struct DotBackwardColumns {
  using A = accumulate_t<S>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size = 0;
  A* const block;
  A *const value_grad, *const key_grad;
  A *const value, *const key;
  const FarState<A> state;
  A *const scores, *const dots, *const masks;
  uint32_t* const halves;

  DotBackwardColumns(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(2 * heads.size()),
        block(carver.take<A>(block_size)),
        value_grad(block),
        key_grad(part_of(block, heads.size())),
        value(carver.take<A>(heads.size())),
        key(carver.take<A>(heads.size())),
        state(lanes, carver),
        scores(carver.take<A>(lanes.size)),
        dots(carver.take<A>(lanes.size)),
        masks(carver.take<A>(lanes.size)),
        halves(carver.take<uint32_t>(lanes.size)) {}

  GNN_DIST_NOINLINE void clear() const { fill(block, block_size, A{0}); }
  GNN_DIST_NOINLINE void open(int64_t row) const {
    heads.pack_factor(static_cast<const S*>(call.own.data) + row * call.own.stride, value);
    pack_scaled(call, heads, call.own_key, row, key);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    state.load(call, lanes, batch);
    const FarRows<S> grad(call, call.far, batch), query(call, call.far_key, batch);
    heads.dots(grad, value, batch.count, dots);
    heads.dots(query, key, batch.count, scores);
    fill(masks, lanes.size, A{1});
    drop(call, batch, halves, masks);
    score_gradients(lanes, batch.count, state.softmax(), dots, scores, masks);
    heads.template add<false, false>(grad, masks, nullptr, batch.count, value_grad);
    heads.template add<false, false>(query, scores, nullptr, batch.count, key_grad);
  }
  GNN_DIST_NOINLINE void merge(const A* other) const { add_to(block, other, block_size); }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    for (int64_t i = 0; i < heads.size(); ++i) key_grad[i] *= static_cast<A>(call.scale);
    heads.unpack(value_grad, static_cast<S*>(call.out.data) + row * call.out.stride);
    heads.unpack(key_grad, static_cast<S*>(call.out_second.data) + row * call.out_second.stride);
  }
  void collect(const A*, A*, A*) const {}
};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(AttentionKernels, dot_attention) = {GNN_DIST_ATTENTION_PASSES(Dot)};
}  // namespace gnn_dist
