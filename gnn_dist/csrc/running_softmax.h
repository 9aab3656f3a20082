// The softmax of a row whose entries come batch by batch, for files in hot/.
#pragma once

#include "exp.h"
#include "lanes.h"

namespace GNN_DIST_ISA {

template <class A>
constexpr A infinity = static_cast<A>(__builtin_inf());

// The softmax of a row so far: its largest score and the sum of exponentials, for each head.
template <class A>
struct Online {
  static constexpr int W = full_width<A>;
  A *largest, *total;  // a period each

  GNN_DIST_NOINLINE void clear(const Lanes<A>& lanes) const {
    fill(largest, lanes.period, -infinity<A>);
    fill(total, lanes.period, A{0});
  }
  // Turns a batch's scores into exp(score - largest); rows added up so far need `factor`.
  GNN_DIST_NOINLINE void take(const Lanes<A>& lanes, int count, A* scores,
                                      A* factor) const {
    const int64_t filled = count * lanes.lanes;
    fill(scores + filled, (filled + W - 1) / W * W - filled, -infinity<A>);
    for (int64_t first = 0; first < lanes.period; first += W) {
      const auto old = load_plain<A, W>(largest + first);
      auto most = old;
      for (int64_t j = first; j < filled; j += lanes.period) {
        const auto score = load_plain<A, W>(scores + j);
        most = score > most ? score : most;
      }
      most = lanes.fold(most, [](auto a, auto b) { return a > b ? a : b; });
      // With nothing but -infinity so far, the difference to it would not be a number.
      const auto from = most == -infinity<A> ? vec<A, W>{} : most;
      auto sum = vec<A, W>{};
      for (int64_t j = first; j < filled; j += lanes.period) {
        const auto power = exponential<A, W>(load_plain<A, W>(scores + j) - from);
        store_plain<A, W>(scores + j, power);
        sum += power;
      }
      rescale(first, most, from, lanes.fold(sum, [](auto a, auto b) { return a + b; }), factor);
    }
  }
  // Goes on from another part of the row; `factor` is for this one, `other_factor` for that.
  GNN_DIST_NOINLINE void merge(const Lanes<A>& lanes, Online other, A* factor,
                                       A* other_factor) const {
    for (int64_t i = 0; i < lanes.period; i += W) {
      const auto mine = load_plain<A, W>(largest + i);
      const auto theirs = load_plain<A, W>(other.largest + i);
      const auto most = theirs > mine || theirs != theirs ? theirs : mine;
      const auto from = most == -infinity<A> ? vec<A, W>{} : most;
      const auto weight = exponential<A, W>(theirs - from);
      store_plain<A, W>(other_factor + i, weight);
      rescale(i, most, from, weight * load_plain<A, W>(other.total + i), factor);
    }
  }

 private:
  GNN_DIST_INLINE void rescale(int64_t at, vec<A, W> most, vec<A, W> from, vec<A, W> more,
                               A* factor) const {
    const auto scale = exponential<A, W>(load_plain<A, W>(largest + at) - from);
    store_plain<A, W>(factor + at, scale);
    store_plain<A, W>(largest + at, most);
    store_plain<A, W>(total + at, load_plain<A, W>(total + at) * scale + more);
  }
};

}  // namespace GNN_DIST_ISA
