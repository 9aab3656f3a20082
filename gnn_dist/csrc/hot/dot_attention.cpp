// Dot-product attention: score = scale <q[r, h], k[c, h]>, value = v[c, h].
//
// With alpha = softmax(score), mask m, g the gradient of the output, d = <g[r, h], v[c, h]> and
// inner = <g[r, h], out[r, h]>:
//
//   gradient of a score   t = alpha (m d - inner)
//   by rows      grad q[r] = scale sum t k[c]
//   by columns   grad v[c] = sum alpha m g[r];  grad k[c] = scale sum t q[r]
#include "../attend.h"

namespace GNN_DIST_ISA {

// Reads far_key = k, and a row of q as a packed factor, times the scale. In the backward's second
// pass the two change places.
template <class S, int W>
struct DotScore {
  using A = accumulate_t<S>;
  static constexpr bool kAsksForValues = false;
  const SumsPass<S, W>& pass;
  A* const query;

  DotScore(const SumsPass<S, W>& p, Carver& carver)
      : pass(p), query(carver.take<A>(p.heads.size())) {}

  GNN_DIST_INLINE void open(int64_t row) const { pack(pass.call.own, row); }
  GNN_DIST_NOINLINE void pack(const gnn_dist::Matrix& matrix, int64_t row) const {
    pass.heads.pack_factor(pass.row_of(matrix, row), query);
    scale(query);
  }
  GNN_DIST_NOINLINE void scale(A* packed) const {
    for (int64_t i = 0; i < pass.heads.size(); ++i) packed[i] *= static_cast<A>(pass.call.scale);
  }
  GNN_DIST_INLINE void take(const Batch& batch, const FarRows<S>&, A* scores) const {
    of(FarRows<S>(pass.call, pass.call.far_key, batch), batch, scores);
  }
  GNN_DIST_INLINE void of(const FarRows<S>& key, const Batch& batch, A* scores) const {
    pass.heads.dots(key, query, batch.count, scores);
  }
};

// Reads far = v, far_key = k, own = q, state, grad, result; writes out = grad q and the inner
// product in state.
template <class S, int W>
struct DotBackwardRows : SumsPass<S, W> {
  using Pass = SumsPass<S, W>;
  using typename Pass::A;
  using Pass::call, Pass::lanes, Pass::heads, Pass::block;
  const DotScore<S, W> score;
  const RowGradient<A> gradient;
  A* const scores;
  const ScoreGradients<A> change;

  DotBackwardRows(const AttentionCall& c, Carver& carver)
      : Pass(c, carver, 0, 1),
        score(*this, carver),
        gradient(lanes, heads.size(), carver),
        scores(carver.take<A>(lanes.size)),
        change(lanes, carver) {}

  GNN_DIST_NOINLINE void open(int64_t row) const {
    score.open(row);
    gradient.template load<S, W>(call, lanes, heads, row);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    const FarRows<S> key(call, call.far_key, batch), value(call, call.far, batch);
    score.of(key, batch, scores);
    heads.dots(value, gradient.factor, batch.count, change.dots);
    change.take(call, lanes, batch, gradient.softmax(), scores);
    heads.template add<false, false>(key, scores, nullptr, batch.count, block);
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    gradient.save(call, lanes, row);
    score.scale(block);
    this->save(block, call.out, row);
  }
};

// By columns: far = gradients, far_key = q and far_state of destinations, own = v, own_key = k.
// Writes out = grad v and out_second = grad k.
template <class S, int W>
struct DotBackwardColumns : SumsPass<S, W> {
  using Pass = SumsPass<S, W>;
  using typename Pass::A;
  using Pass::call, Pass::lanes, Pass::heads, Pass::block;
  A *const value_grad, *const key_grad, *const value;
  const DotScore<S, W> score;
  const FarState<A> state;
  A* const scores;
  const ScoreGradients<A> change;

  DotBackwardColumns(const AttentionCall& c, Carver& carver)
      : Pass(c, carver, 0, 2),
        value_grad(block),
        key_grad(part_of(block, heads.size())),
        value(carver.take<A>(heads.size())),
        score(*this, carver),
        state(lanes, carver),
        scores(carver.take<A>(lanes.size)),
        change(lanes, carver) {}

  GNN_DIST_NOINLINE void open(int64_t row) const {
    heads.pack_factor(Pass::row_of(call.own, row), value);
    score.pack(call.own_key, row);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    state.load(call, lanes, batch);
    const FarRows<S> grad(call, call.far, batch), query(call, call.far_key, batch);
    heads.dots(grad, value, batch.count, change.dots);
    score.of(query, batch, scores);
    change.take(call, lanes, batch, state.softmax(), scores);
    heads.template add<false, false>(grad, change.masks, nullptr, batch.count, value_grad);
    heads.template add<false, false>(query, scores, nullptr, batch.count, key_grad);
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    score.scale(key_grad);
    this->save(value_grad, call.out, row);
    this->save(key_grad, call.out_second, row);
  }
};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(AttentionKernels, dot_attention) = {GNN_DIST_ATTENTION_PASSES(Dot)};
}  // namespace gnn_dist
