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
#include "../entry_batch.h"

namespace GNN_DIST_ISA {

using gnn_dist::kInner;
using gnn_dist::kInverse;
using gnn_dist::kLargest;
using gnn_dist::kScore;

// Reads far x and far_score, the score in state; writes out and the rest of state.
template <class S, int W>
struct GatForward {
  using A = accumulate_t<S>;
  static constexpr int V = full_width<A>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size = 0;
  A* const block;
  Online<A> online;
  A* const sums;
  A *const own, *const scores, *const mask, *const factor, *const other_factor;
  uint64_t* const words;

  GatForward(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(2 * lanes.period + heads.size()),
        block(carver.take<A>(block_size)),
        online{block, block + lanes.period},
        sums(block + 2 * lanes.period),
        own(carver.take<A>(lanes.period)),
        scores(carver.take<A>(lanes.size)),
        mask(carver.take<A>(lanes.size)),
        factor(carver.take<A>(lanes.period)),
        other_factor(carver.take<A>(lanes.period)),
        words(carver.take<uint64_t>(lanes.size)) {}

  GNN_DIST_INLINE void clear() {
    online.clear(lanes);
    fill(sums, heads.size(), A{0});
  }
  GNN_DIST_INLINE void open(int64_t row) {
    lanes.repeat(state_of<A>(call, row) + kScore * lanes.lanes, own);
  }
  GNN_DIST_INLINE void take(const Batch& batch) {
    prefetch_next<S>(call, call.far, batch);
    prefetch_next_lanes<A>(call, call.far_score, 1, batch);
    const auto* far_score = static_cast<const A*>(call.far_score);
    for (int e = 0; e < batch.count; ++e) {
      lanes.copy(far_score + batch.column[e] * lanes.lanes, scores + e * lanes.lanes);
    }
    const A slope = static_cast<A>(call.slope);
    for (int64_t j = 0; j < batch.count * lanes.lanes; j += V) {
      const auto z = load_plain<A, V>(scores + j) + load_plain<A, V>(own + j % lanes.period);
      store_plain<A, V>(scores + j, z * slope_of<A, V>(z, slope));
    }
    online.take(lanes, batch.count, scores, factor);
    if (call.drops.on) {
      draw_masks<A>(call, batch, words, mask);
      for (int64_t j = 0; j < batch.count * lanes.lanes; ++j) scores[j] *= mask[j];
    }
    heads.template add<true>(FarRows<S>(call, call.far, batch), scores, factor, batch.count, sums);
  }
  GNN_DIST_INLINE void merge(const A* other) {
    auto* part = const_cast<A*>(other);
    online.merge(lanes, Online<A>{part, part + lanes.period}, factor, other_factor);
    const A* more = other + 2 * lanes.period;
    heads.each([&](int64_t at, int64_t, int64_t h) {
      store_plain<A, W>(sums + at, load_plain<A, W>(sums + at) * factor[h] +
                                       load_plain<A, W>(more + at) * other_factor[h]);
    });
  }
  GNN_DIST_INLINE void finish(int64_t row, A*) {
    save_softmax(call, lanes, online, row, factor);
    heads.each([&](int64_t at, int64_t, int64_t h) {
      store_plain<A, W>(sums + at, load_plain<A, W>(sums + at) * factor[h]);
    });
    heads.unpack(sums, static_cast<S*>(call.out.data) + row * call.out.stride);
  }
  void collect(const A*, A*, A*) const {}
};

// Reads far x and far_score, state, grad; writes own_grad = grad a_dst, the inner product in state.
template <class S, int W>
struct GatBackwardRows {
  using A = accumulate_t<S>;
  static constexpr int V = full_width<A>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size = 0;
  A* const block;
  A *const inner, *const steep, *const steep_inner;  // sums of alpha m d, s alpha, s alpha m d
  A *const own, *const largest, *const inverse, *const grad, *const scores, *const dots, *const mask;
  uint64_t* const words;

  GatBackwardRows(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(3 * lanes.period),
        block(carver.take<A>(block_size)),
        inner(block),
        steep(block + lanes.period),
        steep_inner(block + 2 * lanes.period),
        own(carver.take<A>(lanes.period)),
        largest(carver.take<A>(lanes.period)),
        inverse(carver.take<A>(lanes.period)),
        grad(carver.take<A>(heads.size())),
        scores(carver.take<A>(lanes.size)),
        dots(carver.take<A>(lanes.size)),
        mask(carver.take<A>(lanes.size)),
        words(carver.take<uint64_t>(lanes.size)) {}

  GNN_DIST_INLINE void clear() { fill(block, block_size, A{0}); }
  GNN_DIST_INLINE void open(int64_t row) {
    const A* state = state_of<A>(call, row);
    lanes.repeat(state + kScore * lanes.lanes, own);
    lanes.repeat(state + kLargest * lanes.lanes, largest);
    lanes.repeat(state + kInverse * lanes.lanes, inverse);
    heads.pack_factor(static_cast<const S*>(call.grad.data) + row * call.grad.stride, grad);
  }
  GNN_DIST_INLINE void take(const Batch& batch) {
    prefetch_next<S>(call, call.far, batch);
    prefetch_next_lanes<A>(call, call.far_score, 1, batch);
    const auto* far_score = static_cast<const A*>(call.far_score);
    for (int e = 0; e < batch.count; ++e) {
      lanes.copy(far_score + batch.column[e] * lanes.lanes, scores + e * lanes.lanes);
    }
    heads.dots(FarRows<S>(call, call.far, batch), grad, batch.count, dots);
    if (call.drops.on) {
      draw_masks<A>(call, batch, words, mask);
      for (int64_t j = 0; j < batch.count * lanes.lanes; ++j) dots[j] *= mask[j];
    }
    const A negative_slope = static_cast<A>(call.slope);
    for (int64_t j = 0; j < batch.count * lanes.lanes; j += V) {
      const int64_t i = j % lanes.period;
      const auto z = load_plain<A, V>(scores + j) + load_plain<A, V>(own + i);
      const auto slope = slope_of<A, V>(z, negative_slope);
      const auto power = exponential<A, V>(z * slope - load_plain<A, V>(largest + i));
      const auto alpha = lanes.only(power * load_plain<A, V>(inverse + i), j, batch.count);
      const auto part = lanes.only(alpha * load_plain<A, V>(dots + j), j, batch.count);
      add(inner + i, part);
      add(steep + i, slope * alpha);
      add(steep_inner + i, slope * part);
    }
  }
  GNN_DIST_INLINE void merge(const A* other) {
    for (int64_t i = 0; i < block_size; ++i) block[i] += other[i];
  }
  GNN_DIST_INLINE void finish(int64_t row, A*) {
    for (int64_t i = 0; i < block_size; i += lanes.period) lanes.fold_sums(block + i);
    A* state = state_of<A>(call, row);
    A* own_grad = static_cast<A*>(call.own_grad) + row * lanes.lanes;
    for (int64_t i = 0; i < lanes.lanes; ++i) {
      state[kInner * lanes.lanes + i] = inner[i];
      own_grad[i] = steep_inner[i] - inner[i] * steep[i];
    }
  }
  void collect(const A*, A*, A*) const {}

 private:
  static GNN_DIST_INLINE void add(A* to, vec<A, V> value) {
    store_plain<A, V>(to, load_plain<A, V>(to) + value);
  }
};

// By columns: own x, own_score = a_src and, of the first num_dst, own_grad = grad a_dst; far
// gradients and far_state of destinations. Writes out = grad x. Slots hold the
// gradients of att_src and att_dst.
template <class S, int W>
struct GatBackwardColumns {
  using A = accumulate_t<S>;
  static constexpr int V = full_width<A>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size;
  A* const block;
  A *const score_grad, *const sums;
  A *const own, *const x, *const att_src, *const att_dst;
  A *const far_dst, *const far_largest, *const far_inverse, *const far_inner;
  A *const dots, *const mask;
  uint64_t* const words;

  GatBackwardColumns(const AttentionCall& c, Carver& carver)
      : call(c),
        lanes(c),
        heads(c),
        block_size(lanes.period + heads.size()),
        slot_size(2 * heads.size()),
        block(carver.take<A>(block_size)),
        score_grad(block),
        sums(block + lanes.period),
        own(carver.take<A>(lanes.period)),
        x(carver.take<A>(heads.size())),
        att_src(carver.take<A>(heads.size())),
        att_dst(carver.take<A>(heads.size())),
        far_dst(carver.take<A>(lanes.size)),
        far_largest(carver.take<A>(lanes.size)),
        far_inverse(carver.take<A>(lanes.size)),
        far_inner(carver.take<A>(lanes.size)),
        dots(carver.take<A>(lanes.size)),
        mask(carver.take<A>(lanes.size)),
        words(carver.take<uint64_t>(lanes.size)) {
    if (block == nullptr) return;
    heads.pack(static_cast<const A*>(call.attention), att_src);
    heads.pack(static_cast<const A*>(call.attention_second), att_dst);
  }

  GNN_DIST_INLINE void clear() { fill(block, block_size, A{0}); }
  GNN_DIST_INLINE void open(int64_t row) {
    lanes.repeat(static_cast<const A*>(call.own_score) + row * lanes.lanes, own);
    heads.pack_factor(static_cast<const S*>(call.own.data) + row * call.own.stride, x);
  }
  GNN_DIST_INLINE void take(const Batch& batch) {
    prefetch_next<S>(call, call.far, batch);
    prefetch_next_lanes<A>(call, call.far_state, call.fields, batch);
    for (int e = 0; e < batch.count; ++e) {
      const A* state = far_state_of<A>(call, batch.column[e]);
      const int64_t j = e * lanes.lanes;
      lanes.copy(state + kScore * lanes.lanes, far_dst + j);
      lanes.copy(state + kLargest * lanes.lanes, far_largest + j);
      lanes.copy(state + kInverse * lanes.lanes, far_inverse + j);
      lanes.copy(state + kInner * lanes.lanes, far_inner + j);
    }
    const FarRows<S> grad(call, call.far, batch);
    heads.dots(grad, x, batch.count, dots);
    if (call.drops.on) {
      draw_masks<A>(call, batch, words, mask);
    } else {
      fill(mask, lanes.size, A{1});
    }
    const A negative_slope = static_cast<A>(call.slope);
    for (int64_t j = 0; j < batch.count * lanes.lanes; j += V) {
      const int64_t i = j % lanes.period;
      const auto z = load_plain<A, V>(own + i) + load_plain<A, V>(far_dst + j);
      const auto slope = slope_of<A, V>(z, negative_slope);
      const auto power = exponential<A, V>(z * slope - load_plain<A, V>(far_largest + j));
      const auto alpha = power * load_plain<A, V>(far_inverse + j);
      const auto kept = load_plain<A, V>(mask + j);
      const auto part = kept * load_plain<A, V>(dots + j) - load_plain<A, V>(far_inner + j);
      const auto change = lanes.only(slope * alpha * part, j, batch.count);
      store_plain<A, V>(score_grad + i, load_plain<A, V>(score_grad + i) + change);
      store_plain<A, V>(mask + j, alpha * kept);
    }
    heads.template add<false>(grad, mask, nullptr, batch.count, sums);
  }
  GNN_DIST_INLINE void merge(const A* other) {
    for (int64_t i = 0; i < block_size; ++i) block[i] += other[i];
  }
  GNN_DIST_INLINE void finish(int64_t row, A* slot) {
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
    heads.unpack(sums, static_cast<S*>(call.out.data) + row * call.out.stride);
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
  const Heads<S, W> heads(call);
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
      A rest = horizontal_sum<A, W>(sum);
      for (; f < (h + 1) * call.width; ++f) rest += load<S, 1>(x + f) * with[f];
      to[h] = rest;
    }
  };
  for (int64_t row = row_begin; row < row_end; ++row) {
    product(call.attention, row, static_cast<A*>(far_score) + row * call.lanes);
    if (row >= call.num_dst) continue;
    A* own = static_cast<A*>(state) + (row * call.fields + gnn_dist::kScore) * call.lanes;
    product(call.attention_second, row, own);
  }
}

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;

GNN_DIST_TABLE(AttentionKernels, gat) = {GNN_DIST_ATTENTION_PASSES(Gat)};

#define GNN_DIST_SCORES(S)                                                                  \
  {scores<S, fitting_width<S, 1>>, scores<S, fitting_width<S, 2>>, scores<S, fitting_width<S, 4>>, \
   scores<S, fitting_width<S, 8>>, scores<S, fitting_width<S, 16>>}
GNN_DIST_TABLE(GatScoreKernels, gat_scores) = {
    {GNN_DIST_SCORES(float), GNN_DIST_SCORES(double), GNN_DIST_SCORES(bf16), GNN_DIST_SCORES(f16)}};
}  // namespace gnn_dist
