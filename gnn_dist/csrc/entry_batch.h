// Entries of a row taken eight at a time, and the walk over them, for files in hot/.
#pragma once

// First: it turns off a warning for vectors in draws.h, too.
#include "lanes.h"

#include "draws.h"

namespace GNN_DIST_ISA {

// Entries that are worked on together. What it lacks of eight stands at column 0.
struct Batch {
  int count;
  int32_t column[kBatch];
  int64_t copy[kBatch];  // how many equal entries stand right before each
  int64_t row;
  int64_t next;  // the entry after the last
};

// Asks for numbers per head, a row of `fields` times lanes for each column, of the entries after a
// batch.
template <class A>
GNN_DIST_INLINE void prefetch_next_lanes(const AttentionCall& call, const void* data,
                                         int64_t fields, const Batch& batch) {
  const int64_t last = batch.next + kBatch < call.nnz ? batch.next + kBatch : call.nnz;
  const int64_t num_bytes = fields * call.lanes * static_cast<int64_t>(sizeof(A));
  for (int64_t entry = batch.next; entry < last; ++entry) {
    prefetch_bytes(reinterpret_cast<const void*>(
                       reinterpret_cast<uintptr_t>(data) +
                       static_cast<uintptr_t>(call.indices[entry] * num_bytes)),
                   num_bytes);
  }
}

// Rows of a matrix for each entry of a batch, and of the eight entries after a full one, which are
// asked for while the batch is worked on.
template <class S>
struct FarRows {
  const S* at[kBatch];
  uintptr_t next[kBatch];

  GNN_DIST_INLINE FarRows(const AttentionCall& call, const gnn_dist::Matrix& matrix,
                          const Batch& batch) {
    for (int e = 0; e < kBatch; ++e) {
      at[e] = static_cast<const S*>(matrix.data) + batch.column[e] * matrix.stride;
    }
    // Not yet known to lie inside: addresses only.
    const int64_t row_bytes = matrix.stride * static_cast<int64_t>(sizeof(S));
    const int64_t last = call.nnz - 1;
    for (int e = 0; e < kBatch; ++e) {
      const int64_t entry = batch.next + e < last ? batch.next + e : last;
      next[e] = reinterpret_cast<uintptr_t>(matrix.data) +
                static_cast<uintptr_t>(call.indices[entry] * row_bytes);
    }
    if (batch.count == kBatch) return;
    const int64_t num_bytes = call.heads * call.width * static_cast<int64_t>(sizeof(S));
    for (int e = 0; e < kBatch; ++e) {
      prefetch_bytes(reinterpret_cast<const void*>(next[e]), num_bytes);
    }
  }
  // Asks for W elements of a next row: once for each cache line, or so.
  template <int W>
  GNN_DIST_INLINE void prefetch(int e, int64_t column) const {
    constexpr int64_t kLine = 64 / sizeof(S);
    if (W < kLine && column % kLine >= W) return;
    __builtin_prefetch(
        reinterpret_cast<const void*>(next[e] + static_cast<uintptr_t>(column) * sizeof(S)));
  }
};

// to[j] *= 0 where the entry's coefficient is dropped, else 1 / (1 - p). `halves` has room for
// Lanes::size.
template <class A>
GNN_DIST_NOINLINE void draw_drops(const AttentionCall& call, const Batch& batch,
                                    uint32_t* halves, A* to) {
  typedef vec<uint64_t, kBatch> Words;
  const gnn_dist::EdgeDrops& drops = call.drops;
  const auto own = static_cast<uint64_t>(drops.own_id[batch.row]);
  Words far, copy, position;
  uint64_t ids[kBatch];
  for (int e = 0; e < kBatch; ++e) ids[e] = static_cast<uint64_t>(drops.far_id[batch.column[e]]);
  __builtin_memcpy(&far, ids, sizeof far);
  __builtin_memcpy(&copy, batch.copy, sizeof copy);
  for (int e = 0; e < kBatch; ++e) position[e] = static_cast<uint64_t>(e);
  using gnn_dist::kGolden;
  using gnn_dist::mix;
  // edge_id and row_key of draws.h, for eight entries.
  const Words ends = drops.own_is_dst ? mix<Words>(far + kGolden) + own
                                      : far + mix<uint64_t>(own + kGolden);
  const Words row = mix<Words>(mix<Words>(mix<Words>(ends) + copy + kGolden) ^ drops.key);
  // Word j of an entry serves heads 2 j and 2 j + 1: as 32-bit numbers, draws lie in our order.
  const auto lanes = static_cast<uint64_t>(call.lanes), per_entry = lanes > 1 ? lanes / 2 : 1;
  for (uint64_t i = 0; i < kBatch * per_entry; i += kBatch) {
    const Words at = position + i;
    Words from, j;
    if (per_entry <= kBatch) {
      const int shift = __builtin_ctzll(per_entry);
      from = __builtin_shuffle(row, at >> shift);
      j = at & (per_entry - 1);
    } else {
      const uint64_t e = i / per_entry;
      from = Words{} + row[e];
      j = at - e * per_entry;
    }
    const Words word = mix<Words>(from + (j + 1) * kGolden);
    if (lanes > 1) {
      __builtin_memcpy(halves + 2 * i, &word, sizeof word);
    } else {
      for (int e = 0; e < kBatch; ++e) halves[e] = static_cast<uint32_t>(word[e]);
    }
  }
  const A scale = static_cast<A>(drops.scale);
  for (uint64_t i = 0; i < kBatch * lanes; ++i) {
    to[i] *= halves[i] >= drops.threshold ? scale : A{0};
  }
}

template <class A>
GNN_DIST_INLINE void drop(const AttentionCall& call, const Batch& batch, uint32_t* halves, A* to) {
  if (call.drops.on) draw_drops<A>(call, batch, halves, to);
}

// Takes the entries [begin, end) of a row, batch by batch. Not inlined: it is most of the code.
template <class Pass>
GNN_DIST_NOINLINE bool walk(const AttentionCall& call, Pass& pass, int64_t row, int64_t begin,
                          int64_t end) {
  const auto num_cols = static_cast<uint64_t>(call.num_cols);
  Batch batch;
  batch.row = row;
  int64_t copy = -1;
  if (call.drops.on) {
    for (int64_t i = begin; i > call.indptr[row] && call.indices[i - 1] == call.indices[begin];) {
      ++copy, --i;
    }
  }
  int32_t before = copy >= 0 ? call.indices[begin] : -1;
  for (int64_t entry = begin; entry < end; entry += kBatch) {
    batch.count = end - entry < kBatch ? static_cast<int>(end - entry) : kBatch;
    batch.next = entry + batch.count;
    for (int e = 0; e < batch.count; ++e) {
      const int32_t column = call.indices[entry + e];
      if (__builtin_expect(static_cast<uint64_t>(static_cast<int64_t>(column)) >= num_cols, 0)) {
        return false;
      }
      copy = column == before ? copy + 1 : 0;
      before = column;
      batch.column[e] = column;
      batch.copy[e] = copy;
    }
    for (int e = batch.count; e < kBatch; ++e) batch.column[e] = 0, batch.copy[e] = 0;
    pass.take(batch);
  }
  return true;
}

// A pass as the operators call it. Pass has: Pass(call, carver), whose first piece of scratch is
// the block; clear(); open(row), before entries are taken or a row is finished; take(batch);
// merge(block); finish(row, slot); block_size, slot_size in elements; collect.
template <class Pass>
struct RunPass {
  using A = typename Pass::A;

  static int64_t scratch_bytes(const AttentionCall& call) {
    Carver carver{nullptr};
    const Pass pass(call, carver);
    return carver.used;
  }
  static int64_t block_bytes(const AttentionCall& call) {
    Carver carver{nullptr};
    return Pass(call, carver).block_size * static_cast<int64_t>(sizeof(A));
  }
  static int64_t slot_bytes(const AttentionCall& call) {
    Carver carver{nullptr};
    return Pass(call, carver).slot_size * static_cast<int64_t>(sizeof(A));
  }
  static bool rows(const AttentionCall& call, int64_t row_begin, int64_t row_end, void* scratch,
                   void* slot) {
    Carver carver{static_cast<char*>(scratch)};
    Pass pass(call, carver);
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t begin = call.indptr[row], end = call.indptr[row + 1];
      if (end - begin > gnn_dist::kHubEntries) continue;  // done in pieces
      pass.clear();
      pass.open(row);
      if (!walk(call, pass, row, begin, end)) return false;
      pass.finish(row, static_cast<A*>(slot));
    }
    return true;
  }
  static bool piece(const AttentionCall& call, int64_t row, int64_t begin, int64_t end,
                    void* scratch, void* block) {
    Carver carver{static_cast<char*>(scratch)};
    Pass pass(call, carver);
    pass.clear();
    pass.open(row);
    if (!walk(call, pass, row, begin, end)) return false;
    __builtin_memcpy(block, scratch, static_cast<size_t>(pass.block_size) * sizeof(A));
    return true;
  }
  static void finish(const AttentionCall& call, int64_t row, void* scratch, const void* blocks,
                     int64_t num_blocks, void* slot) {
    Carver carver{static_cast<char*>(scratch)};
    Pass pass(call, carver);
    pass.clear();
    pass.open(row);
    for (int64_t i = 0; i < num_blocks; ++i) {
      pass.merge(static_cast<const A*>(blocks) + i * pass.block_size);
    }
    pass.finish(row, static_cast<A*>(slot));
  }
  static void collect(const AttentionCall& call, const void* slots, int64_t num_slots, void* first,
                      void* second) {
    Carver carver{nullptr};
    const Pass pass(call, carver);
    if (pass.slot_size == 0) return;
    auto* sum = const_cast<A*>(static_cast<const A*>(slots));
    for (int64_t i = 1; i < num_slots; ++i) {
      for (int64_t k = 0; k < pass.slot_size; ++k) sum[k] += sum[i * pass.slot_size + k];
    }
    pass.collect(sum, static_cast<A*>(first), static_cast<A*>(second));
  }
  static constexpr gnn_dist::AttentionPass table = {scratch_bytes, block_bytes, slot_bytes, rows,
                                                    piece,         finish,      collect};
};

// The width that stands for W: a vector has at most a register's elements, and two floats alone
// gain nothing.
template <class S, int W>
constexpr int fitting_width = W > full_width<accumulate_t<S>> ? full_width<accumulate_t<S>>
                              : W == 2 && sizeof(accumulate_t<S>) == 4 ? 1
                                                                       : W;

}  // namespace GNN_DIST_ISA
