// What the three kinds of attention share, for files in hot/: the state that is kept of a row's
// softmax, the forward for any score, and a score's gradient.
#pragma once

#include "heads.h"
#include "running_softmax.h"

namespace GNN_DIST_ISA {

template <class A>
GNN_DIST_INLINE A* state_of(const AttentionCall& call, int64_t row) {
  return static_cast<A*>(call.state) + row * call.fields * call.lanes;
}

// Writes a row's softmax to its state, and to `inverse` what exp(score - largest) is multiplied by.
template <class A>
GNN_DIST_NOINLINE void save_softmax(const AttentionCall& call, const Lanes<A>& lanes,
                                  const Online<A>& online, int64_t row, A* inverse) {
  const bool is_empty = call.indptr[row] == call.indptr[row + 1];
  A* state = state_of<A>(call, row);
  for (int64_t i = 0; i < lanes.lanes; ++i) {
    inverse[i] = is_empty ? A{0} : A{1} / online.total[i];
    state[gnn_dist::kLargest * lanes.lanes + i] = is_empty ? A{0} : online.largest[i];
    state[gnn_dist::kInverse * lanes.lanes + i] = inverse[i];
  }
}

// The softmax of rows as the backward needs it: of one row, repeated, or of each entry's.
template <class A>
struct Softmax {
  const A *largest, *inverse, *inner;
  bool by_entry;
};

// From scores, the inner products d of a gradient and a value, and masks m: what a value's gradient
// is multiplied by, alpha m (into masks), and the gradient of the score, alpha (m d - inner) (into
// scores).
template <class A>
GNN_DIST_NOINLINE void score_gradients(const Lanes<A>& lanes, int64_t count,
                                               const Softmax<A>& softmax, const A* dots, A* scores,
                                               A* masks) {
  constexpr int W = full_width<A>;
  for (int64_t j = 0; j < count * lanes.lanes; j += W) {
    const int64_t i = softmax.by_entry ? j : lanes.place(j);
    const auto power =
        exponential<A, W>(load_plain<A, W>(scores + j) - load_plain<A, W>(softmax.largest + i));
    const auto alpha = power * load_plain<A, W>(softmax.inverse + i);
    const auto mask = load_plain<A, W>(masks + j);
    const auto part = mask * load_plain<A, W>(dots + j) - load_plain<A, W>(softmax.inner + i);
    store_plain<A, W>(scores + j, alpha * part);
    store_plain<A, W>(masks + j, alpha * mask);
  }
}

// The state of each entry's destination.
template <class A>
struct FarState {
  A *const largest, *const inverse, *const inner, *const score;

  FarState(const Lanes<A>& lanes, Carver& carver)
      : largest(carver.take<A>(lanes.size)),
        inverse(carver.take<A>(lanes.size)),
        inner(carver.take<A>(lanes.size)),
        score(carver.take<A>(lanes.size)) {}

  GNN_DIST_NOINLINE void load(const AttentionCall& call, const Lanes<A>& lanes,
                            const Batch& batch) const {
    prefetch_next_lanes<A>(call, call.far_state, call.fields, batch);
    for (int e = 0; e < batch.count; ++e) {
      const A* from = static_cast<const A*>(call.far_state) +
                      batch.column[e] * call.fields * lanes.lanes;
      const int64_t j = e * lanes.lanes;
      lanes.copy(from + gnn_dist::kLargest * lanes.lanes, largest + j);
      lanes.copy(from + gnn_dist::kInverse * lanes.lanes, inverse + j);
      lanes.copy(from + gnn_dist::kInner * lanes.lanes, inner + j);
      if (call.fields <= gnn_dist::kScore) continue;
      lanes.copy(from + gnn_dist::kScore * lanes.lanes, score + j);
    }
  }
  GNN_DIST_INLINE Softmax<A> softmax() const { return {largest, inverse, inner, true}; }
};

// A row's gradient as a packed factor, and its softmax.
template <class A>
struct RowGradient {
  A *const factor, *const largest, *const inverse, *const inner;

  RowGradient(const Lanes<A>& lanes, int64_t size, Carver& carver)
      : factor(carver.take<A>(size)),
        largest(carver.take<A>(lanes.period)),
        inverse(carver.take<A>(lanes.period)),
        inner(carver.take<A>(lanes.period)) {}

  template <class S, int W>
  GNN_DIST_INLINE void load(const AttentionCall& call, const Lanes<A>& lanes,
                            const Heads<S, W>& heads, int64_t row) const {
    heads.pack_factor(static_cast<const S*>(call.grad.data) + row * call.grad.stride, factor);
    const A* state = state_of<A>(call, row);
    lanes.repeat(state + gnn_dist::kLargest * lanes.lanes, largest);
    lanes.repeat(state + gnn_dist::kInverse * lanes.lanes, inverse);
    heads.inner(static_cast<const S*>(call.result.data) + row * call.result.stride, factor, inner);
    for (int64_t i = lanes.lanes; i < lanes.period; ++i) inner[i] = inner[i - lanes.lanes];
  }
  GNN_DIST_INLINE void save(const AttentionCall& call, const Lanes<A>& lanes, int64_t row) const {
    lanes.copy(inner, state_of<A>(call, row) + gnn_dist::kInner * lanes.lanes);
  }
  GNN_DIST_INLINE Softmax<A> softmax() const { return {largest, inverse, inner, false}; }
};

// What all passes have: the sums of a row so far, in `block`.
template <class S, int W>
struct SumsPass {
  using A = accumulate_t<S>;
  static constexpr int V = full_width<A>;
  const AttentionCall& call;
  const Lanes<A> lanes;
  const Heads<S, W> heads;
  const int64_t block_size, slot_size;
  A* const block;

  // A block has `periods` of lanes and then packed rows; a slot has packed rows alone.
  SumsPass(const AttentionCall& c, Carver& carver, int64_t periods, int64_t rows,
           int64_t slot_rows = 0)
      : call(c),
        lanes(c),
        heads(c),
        block_size(periods * lanes.period + rows * heads.size()),
        slot_size(slot_rows * heads.size()),
        block(carver.take<A>(block_size)) {}

  GNN_DIST_NOINLINE void clear() const { fill(block, block_size, A{0}); }
  GNN_DIST_NOINLINE void merge(const A* other) const { add_to(block, other, block_size); }
  void collect(const A*, A*, A*) const {}
  static GNN_DIST_INLINE const S* row_of(const gnn_dist::Matrix& matrix, int64_t row) {
    return static_cast<const S*>(matrix.data) + row * matrix.stride;
  }
  GNN_DIST_INLINE void save(A* packed, const gnn_dist::Matrix& matrix, int64_t row) const {
    heads.unpack(packed, static_cast<S*>(matrix.data) + row * matrix.stride);
  }
};

// The forward: reads far = values, writes out and the softmax in state. Score<S, W> has:
// Score(pass, carver); open(row); take(batch, values, scores), which makes a batch's scores, and
// asks for the next values if kAsksForValues.
template <class S, int W, template <class, int> class Score>
struct AttentionForward : SumsPass<S, W> {
  using Pass = SumsPass<S, W>;
  using typename Pass::A;
  using Pass::call, Pass::lanes, Pass::heads, Pass::block;
  const Online<A> online;
  A* const sums;
  const Score<S, W> score;
  A *const scores, *const factor, *const other_factor;
  uint32_t* const halves;

  AttentionForward(const AttentionCall& c, Carver& carver)
      : Pass(c, carver, 2, 1),
        online{block, part_of(block, lanes.period)},
        sums(part_of(block, 2 * lanes.period)),
        score(*this, carver),
        scores(carver.take<A>(lanes.size)),
        factor(carver.take<A>(lanes.period)),
        other_factor(carver.take<A>(lanes.period)),
        halves(carver.take<uint32_t>(lanes.size)) {}

  GNN_DIST_NOINLINE void clear() const {
    online.clear(lanes);
    fill(sums, heads.size(), A{0});
  }
  GNN_DIST_INLINE void open(int64_t row) const { score.open(row); }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    const FarRows<S> values(call, call.far, batch);
    score.take(batch, values, scores);
    online.take(lanes, batch.count, scores, factor);
    drop(call, batch, halves, scores);
    heads.template add<true, !Score<S, W>::kAsksForValues>(values, scores, factor, batch.count,
                                                           sums);
  }
  // Goes on from another part of a row.
  GNN_DIST_NOINLINE void merge(const A* other) const {
    auto* part = const_cast<A*>(other);
    online.merge(lanes, Online<A>{part, part + lanes.period}, factor, other_factor);
    const A* more = other + 2 * lanes.period;
    for (int64_t h = 0; h < heads.heads; ++h) {
      for (int64_t i = h * heads.packed; i < (h + 1) * heads.packed; ++i) {
        sums[i] = sums[i] * factor[h] + more[i] * other_factor[h];
      }
    }
  }
  GNN_DIST_NOINLINE void finish(int64_t row, A*) const {
    save_softmax(call, lanes, online, row, factor);
    heads.each([&](int64_t at, int64_t, int64_t h) {
      store_plain<A, W>(sums + at, load_plain<A, W>(sums + at) * factor[h]);
    });
    this->save(sums, call.out, row);
  }
};

// The step of a backward from scores to their gradients, with room for what it takes.
template <class A>
struct ScoreGradients {
  A *const dots, *const masks;
  uint32_t* const halves;

  ScoreGradients(const Lanes<A>& lanes, Carver& carver)
      : dots(carver.take<A>(lanes.size)),
        masks(carver.take<A>(lanes.size)),
        halves(carver.take<uint32_t>(lanes.size)) {}

  // Turns scores into their gradients, given the inner products `dots` of gradients and values.
  // `masks` become what the gradients of values are multiplied by.
  GNN_DIST_INLINE void take(const AttentionCall& call, const Lanes<A>& lanes, const Batch& batch,
                            const Softmax<A>& softmax, A* scores) const {
    fill(masks, lanes.size, A{1});
    drop(call, batch, halves, masks);
    score_gradients(lanes, batch.count, softmax, dots, scores, masks);
  }
};

// An initialiser of AttentionKernels from the classes KindScore, KindBackwardRows and
// KindBackwardColumns.
#define GNN_DIST_PASSES_OF_WIDTH(Kind, S, W)                                      \
  {                                                                               \
    RunPass<AttentionForward<S, fitting_width<S, W>, Kind##Score>>::table,        \
    RunPass<Kind##BackwardRows<S, fitting_width<S, W>>>::table,                   \
    RunPass<Kind##BackwardColumns<S, fitting_width<S, W>>>::table                 \
  }
#define GNN_DIST_PASSES_OF_TYPE(Kind, S)                                        \
  {                                                                             \
    GNN_DIST_PASSES_OF_WIDTH(Kind, S, 1), GNN_DIST_PASSES_OF_WIDTH(Kind, S, 2), \
    GNN_DIST_PASSES_OF_WIDTH(Kind, S, 4), GNN_DIST_PASSES_OF_WIDTH(Kind, S, 8), \
    GNN_DIST_PASSES_OF_WIDTH(Kind, S, 16)                                       \
  }
#define GNN_DIST_ATTENTION_PASSES(Kind)                                            \
  {                                                                                \
    GNN_DIST_PASSES_OF_TYPE(Kind, float), GNN_DIST_PASSES_OF_TYPE(Kind, double),   \
    GNN_DIST_PASSES_OF_TYPE(Kind, bf16), GNN_DIST_PASSES_OF_TYPE(Kind, f16)        \
  }

}  // namespace GNN_DIST_ISA
