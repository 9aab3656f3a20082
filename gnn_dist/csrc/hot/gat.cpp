// Graph attention: score = leaky_relu(a_src[c, h] + a_dst[r, h]), value = x[c, h].
//
// With alpha = softmax(score), mask m, slope s of the leaky ReLU, g the gradient of the output,
// d = <g[r, h], x[c, h]> and inner[r, h] = <g[r, h], out[r, h]> = sum over the row of alpha m d:
//
//   gradient of a score before the leaky ReLU   t = s alpha (m d - inner)
//   by rows      inner = sum alpha m d;  grad a_dst = sum t = sum s alpha m d - inner sum s alpha
//   by columns   grad x[c] = sum alpha m g[r];  grad a_src[c] = sum t
//
// a_src = <x, att_src> and a_dst = <x, att_dst> by head, so that the last pass adds their share to
// grad x and has all it needs for the gradients of both vectors.
#include "../attend.h"

namespace GNN_DIST_ISA {

using gnn_dist::kInner;
using gnn_dist::kInverse;
using gnn_dist::kLargest;
using gnn_dist::kScore;

// scores = leaky_relu(scores + own), and the slope of each.
template <class A>
GNN_DIST_NOINLINE void leaky_scores(const AttentionCall& call, const Lanes<A>& lanes,
                                            int64_t count, const A* own, A* scores, A* slopes) {
  constexpr int V = full_width<A>;
  const A negative_slope = static_cast<A>(call.slope);
  for (int64_t j = 0; j < count * lanes.lanes; j += V) {
    const auto z = load_plain<A, V>(scores + j) + load_plain<A, V>(own + lanes.place(j));
    const auto slope = slope_of<A, V>(z, negative_slope);
    store_plain<A, V>(slopes + j, slope);
    store_plain<A, V>(scores + j, z * slope);
  }
}

template <class A>
GNN_DIST_INLINE void load_scores(const AttentionCall& call, const Lanes<A>& lanes,
                                 const Batch& batch, A* scores) {
  prefetch_next_lanes<A>(call, call.far_score, 1, batch);
  const A* far = static_cast<const A*>(call.far_score);
  for (int e = 0; e < batch.count; ++e) {
    lanes.copy(far + batch.column[e] * lanes.lanes, scores + e * lanes.lanes);
  }
}

// Reads far_score, and the destination's share in state. The slopes of scores stay in `slopes`.
template <class S, int W>
struct GatScore {
  using A = accumulate_t<S>;
  static constexpr bool kAsksForValues = false;
  const SumsPass<S, W>& pass;
  A *const own, *const slopes;

  GatScore(const SumsPass<S, W>& p, Carver& carver)
      : pass(p),
        own(carver.take<A>(p.lanes.period)),
        slopes(carver.take<A>(p.lanes.size)) {}

  GNN_DIST_NOINLINE void open(int64_t row) const {
    pass.lanes.repeat(state_of<A>(pass.call, row) + kScore * pass.lanes.lanes, own);
  }
  GNN_DIST_INLINE void take(const Batch& batch, const FarRows<S>&, A* scores) const {
    load_scores(pass.call, pass.lanes, batch, scores);
    leaky_scores(pass.call, pass.lanes, batch.count, own, scores, slopes);
  }
};

// Reads far x and far_score, state, grad; writes own_grad = grad a_dst, and to state the inner
// product.
template <class S, int W>
struct GatBackwardRows : SumsPass<S, W> {
  using Pass = SumsPass<S, W>;
  using typename Pass::A;
  using Pass::V, Pass::call, Pass::lanes, Pass::heads, Pass::block, Pass::block_size;
  A *const inner, *const steep, *const steep_inner;  // sums of alpha m d, s alpha, s alpha m d
  const GatScore<S, W> score;
  A *const largest, *const inverse, *const grad, *const scores, *const dots;
  uint32_t* const halves;

  GatBackwardRows(const AttentionCall& c, Carver& carver)
      : Pass(c, carver, 3, 0),
        inner(block),
        steep(part_of(block, lanes.period)),
        steep_inner(part_of(block, 2 * lanes.period)),
        score(*this, carver),
        largest(carver.take<A>(lanes.period)),
        inverse(carver.take<A>(lanes.period)),
        grad(carver.take<A>(heads.size())),
        scores(carver.take<A>(lanes.size)),
        dots(carver.take<A>(lanes.size)),
        halves(carver.take<uint32_t>(lanes.size)) {}

  GNN_DIST_NOINLINE void open(int64_t row) const {
    score.open(row);
    const A* state = state_of<A>(call, row);
    lanes.repeat(state + kLargest * lanes.lanes, largest);
    lanes.repeat(state + kInverse * lanes.lanes, inverse);
    heads.pack_factor(Pass::row_of(call.grad, row), grad);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    const FarRows<S> values(call, call.far, batch);
    score.take(batch, values, scores);
    heads.dots(values, grad, batch.count, dots);
    drop(call, batch, halves, dots);
    add_up(lanes, batch.count, Softmax<A>{largest, inverse, nullptr, false}, scores, score.slopes,
           dots, block);
  }
  static GNN_DIST_NOINLINE void add_up(const Lanes<A>& lanes, int64_t count,
                                               const Softmax<A>& softmax, const A* scores,
                                               const A* slopes, const A* dots, A* sums) {
    for (int64_t j = 0; j < count * lanes.lanes; j += V) {
      const int64_t i = lanes.place(j);
      const auto from = load_plain<A, V>(softmax.largest + i);
      const auto power = exponential<A, V>(load_plain<A, V>(scores + j) - from);
      const auto alpha = power * load_plain<A, V>(softmax.inverse + i);
      const auto slope = load_plain<A, V>(slopes + j);
      const auto part = alpha * load_plain<A, V>(dots + j);
      lanes.add(sums, j, count, part);
      lanes.add(sums + lanes.period, j, count, slope * alpha);
      lanes.add(sums + 2 * lanes.period, j, count, slope * part);
    }
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    for (int64_t i = 0; i < block_size; i += lanes.period) lanes.fold_sums(block + i);
    A* state = state_of<A>(call, row);
    A* own_grad = static_cast<A*>(call.own_grad) + row * lanes.lanes;
    for (int64_t i = 0; i < lanes.lanes; ++i) {
      state[kInner * lanes.lanes + i] = inner[i];
      own_grad[i] = steep_inner[i] - inner[i] * steep[i];
    }
  }
};

// By columns: own x, own_score = a_src and, of the first num_dst, own_grad = grad a_dst; far
// gradients and far_state of destinations. Writes out = grad x. Slots hold the gradients of att_src
// and att_dst.
template <class S, int W>
struct GatBackwardColumns : SumsPass<S, W> {
  using Pass = SumsPass<S, W>;
  using typename Pass::A;
  using Pass::V, Pass::call, Pass::lanes, Pass::heads, Pass::block;
  A *const score_grad, *const sums;
  A *const own, *const x, *const att_src, *const att_dst;
  const FarState<A> state;
  A* const slopes;
  const ScoreGradients<A> change;

  GatBackwardColumns(const AttentionCall& c, Carver& carver)
      : Pass(c, carver, 1, 1, 2),
        score_grad(block),
        sums(part_of(block, lanes.period)),
        own(carver.take<A>(lanes.period)),
        x(carver.take<A>(heads.size())),
        att_src(carver.take<A>(heads.size())),
        att_dst(carver.take<A>(heads.size())),
        state(lanes, carver),
        slopes(carver.take<A>(lanes.size)),
        change(lanes, carver) {
    if (block == nullptr) return;
    heads.pack(static_cast<const A*>(call.attention), att_src);
    heads.pack(static_cast<const A*>(call.attention_second), att_dst);
  }

  GNN_DIST_NOINLINE void open(int64_t row) const {
    lanes.repeat(static_cast<const A*>(call.own_score) + row * lanes.lanes, own);
    heads.pack_factor(Pass::row_of(call.own, row), x);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    state.load(call, lanes, batch);
    A* scores = state.score;
    leaky_scores(call, lanes, batch.count, own, scores, slopes);
    const FarRows<S> grad(call, call.far, batch);
    heads.dots(grad, x, batch.count, change.dots);
    change.take(call, lanes, batch, state.softmax(), scores);
    for (int64_t j = 0; j < batch.count * lanes.lanes; j += V) {
      const auto steep = load_plain<A, V>(slopes + j) * load_plain<A, V>(scores + j);
      lanes.add(score_grad, j, batch.count, steep);
    }
    heads.template add<false, false>(grad, change.masks, nullptr, batch.count, sums);
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A* slot) const {
    lanes.fold_sums(score_grad);
    A* slot_dst = slot + heads.size();
    const A* dst_grad = row < call.num_dst
                            ? static_cast<const A*>(call.own_grad) + row * lanes.lanes
                            : static_cast<const A*>(call.zeros);
    heads.each([&](int64_t at, int64_t, int64_t h) {
      const A by_src = score_grad[h], by_dst = dst_grad[h];
      const auto own_x = load_plain<A, W>(x + at);
      store_plain<A, W>(sums + at, load_plain<A, W>(sums + at) +
                                       by_src * load_plain<A, W>(att_src + at) +
                                       by_dst * load_plain<A, W>(att_dst + at));
      store_plain<A, W>(slot + at, load_plain<A, W>(slot + at) + by_src * own_x);
      store_plain<A, W>(slot_dst + at, load_plain<A, W>(slot_dst + at) + by_dst * own_x);
    });
    this->save(sums, call.out, row);
  }
  void collect(const A* slot, A* src, A* dst) const {
    heads.unpack(slot, src);
    heads.unpack(slot + heads.size(), dst);
  }
};

// far_score = <x, attention>, and of the first num_dst rows the score in state = <x,
// attention_second>.
template <class S, int W>
void scores(const AttentionCall& call, int64_t row_begin, int64_t row_end, void* far_score,
            void* state) {
  using A = accumulate_t<S>;
  const auto product = [&](const void* factor, int64_t row, A* to) {
    const S* x = static_cast<const S*>(call.own.data) + row * call.own.stride;
    const A* with = static_cast<const A*>(factor);
    for (int64_t h = 0; h < call.lanes; ++h) to[h] = A{0};
    for (int64_t h = 0; h < call.heads; ++h) {
      auto sum = vec<A, W>{};
      int64_t f = h * call.width;
      for (const int64_t end = f + call.width; f + W <= end; f += W) {
        sum += load<S, W>(x + f) * load_plain<A, W>(with + f);
      }
      A total = horizontal_sum<A, W>(sum);
      for (; f < (h + 1) * call.width; ++f) total += load<S, 1>(x + f) * with[f];
      to[h] = total;
    }
  };
  for (int64_t row = row_begin; row < row_end; ++row) {
    product(call.attention, row, static_cast<A*>(far_score) + row * call.lanes);
    if (row >= call.num_dst) continue;
    A* own = static_cast<A*>(state) + (row * call.fields + kScore) * call.lanes;
    product(call.attention_second, row, own);
  }
}

template <class S>
constexpr gnn_dist::ScoresOfWidth scores_of_width = {
    {scores<S, fitting_width<S, 1>>, scores<S, fitting_width<S, 2>>, scores<S, fitting_width<S, 4>>,
     scores<S, fitting_width<S, 8>>, scores<S, fitting_width<S, 16>>}};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(AttentionKernels, gat) = {GNN_DIST_ATTENTION_PASSES(Gat)};
GNN_DIST_TABLE(GatScoreKernels, gat_scores) = {
    {scores_of_width<float>, scores_of_width<double>, scores_of_width<bf16>,
     scores_of_width<f16>}};
}  // namespace gnn_dist
