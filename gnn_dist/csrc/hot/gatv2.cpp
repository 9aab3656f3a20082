// Attention whose score is not a sum over the ends: score = <att[h], leaky_relu(z)>, where
// z = x_src[c, h] + x_dst[r, h], and value = x_src[c, h].
//
// With the names of gat.cpp, and s the slopes of the leaky ReLU at z, element by element:
//
//   gradient of a score   t = alpha (m d - inner)
//   by rows      grad x_dst[r] = att sum t s;  grad att = sum over all entries of t s z
//   by columns   grad x_src[c] = sum alpha m g[r] + att sum t s
#include "../attend.h"

namespace GNN_DIST_ISA {

// Reads own rows and attention; `take` also reads rows of the other end.
template <class S, int W>
struct GatV2Score {
  using A = accumulate_t<S>;
  static constexpr bool kAsksForValues = true;
  const SumsPass<S, W>& pass;
  A *const own, *const att;

  GatV2Score(const SumsPass<S, W>& p, Carver& carver)
      : pass(p), own(carver.take<A>(p.heads.size())), att(carver.take<A>(p.heads.size())) {
    if (p.block != nullptr) p.heads.pack_factor(static_cast<const A*>(p.call.attention), att);
  }

  A slope() const { return static_cast<A>(pass.call.slope); }
  GNN_DIST_NOINLINE void open(int64_t row) const {
    pass.heads.pack(pass.row_of(pass.call.own, row), own);
  }
  GNN_DIST_INLINE void take(const Batch& batch, const FarRows<S>& x, A* scores) const {
    pass.heads.leaky_dots(x, own, att, slope(), batch.count, scores);
  }
};

// Reads far = x_src, own = x_dst, attention, state, grad, result; writes out = grad x_dst and the
// inner product in state. Slots hold the gradient of att.
template <class S, int W>
struct GatV2BackwardRows : SumsPass<S, W> {
  using Pass = SumsPass<S, W>;
  using typename Pass::A;
  using Pass::call, Pass::lanes, Pass::heads, Pass::block;
  A *const steep, *const leaky;  // sums of t s, t s z
  const GatV2Score<S, W> score;
  const RowGradient<A> gradient;
  A* const scores;
  const ScoreGradients<A> change;

  GatV2BackwardRows(const AttentionCall& c, Carver& carver)
      : Pass(c, carver, 0, 2, 1),
        steep(block),
        leaky(part_of(block, heads.size())),
        score(*this, carver),
        gradient(lanes, heads.size(), carver),
        scores(carver.take<A>(lanes.size)),
        change(lanes, carver) {}

  GNN_DIST_NOINLINE void open(int64_t row) const {
    score.open(row);
    gradient.template load<S, W>(call, lanes, heads, row);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    const FarRows<S> x(call, call.far, batch);
    score.take(batch, x, scores);
    heads.dots(x, gradient.factor, batch.count, change.dots);
    change.take(call, lanes, batch, gradient.softmax(), scores);
    heads.template leaky_add<true>(x, score.own, scores, score.slope(), batch.count, steep, leaky);
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A* slot) const {
    gradient.save(call, lanes, row);
    add_to(slot, leaky, heads.size());
    for (int64_t i = 0; i < heads.size(); ++i) steep[i] *= score.att[i];
    this->save(steep, call.out, row);
  }
  void collect(const A* slot, A* first, A*) const { heads.unpack(slot, first); }
};

// By columns: far = gradients, far_key = x_dst and far_state of destinations, own = x_src,
// attention. Writes out = grad x_src.
template <class S, int W>
struct GatV2BackwardColumns : SumsPass<S, W> {
  using Pass = SumsPass<S, W>;
  using typename Pass::A;
  using Pass::call, Pass::lanes, Pass::heads, Pass::block;
  A *const sums, *const steep;
  const GatV2Score<S, W> score;
  A* const own_factor;
  const FarState<A> state;
  A* const scores;
  const ScoreGradients<A> change;

  GatV2BackwardColumns(const AttentionCall& c, Carver& carver)
      : Pass(c, carver, 0, 2),
        sums(block),
        steep(part_of(block, heads.size())),
        score(*this, carver),
        own_factor(carver.take<A>(heads.size())),
        state(lanes, carver),
        scores(carver.take<A>(lanes.size)),
        change(lanes, carver) {}

  GNN_DIST_NOINLINE void open(int64_t row) const {
    score.open(row);
    heads.pack_factor(Pass::row_of(call.own, row), own_factor);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    state.load(call, lanes, batch);
    const FarRows<S> grad(call, call.far, batch), x(call, call.far_key, batch);
    heads.dots(grad, own_factor, batch.count, change.dots);
    score.take(batch, x, scores);
    change.take(call, lanes, batch, state.softmax(), scores);
    heads.template add<false, false>(grad, change.masks, nullptr, batch.count, sums);
    heads.template leaky_add<false>(x, score.own, scores, score.slope(), batch.count, steep,
                                    nullptr);
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    for (int64_t i = 0; i < heads.size(); ++i) sums[i] += score.att[i] * steep[i];
    this->save(sums, call.out, row);
  }
};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(AttentionKernels, gatv2) = {GNN_DIST_ATTENTION_PASSES(GatV2)};
}  // namespace gnn_dist
