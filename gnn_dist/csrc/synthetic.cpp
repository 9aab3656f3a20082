// Operators that draw the edges of random graphs: any run of them, by their numbers.
#include "synthetic.h"

#include <tuple>

#include "parallel.h"
#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kDrawsPerTask = 1 << 14;
constexpr int kMostBits = 31;

Shuffle make_shuffle(int bits, uint64_t key) {
  Shuffle shuffle{};
  shuffle.bits = bits;
  shuffle.mask = (uint64_t{1} << bits) - 1;
  const uint64_t row = row_key(key, ~uint64_t{0});
  for (int i = 0; i < kShuffleRounds; ++i) {
    shuffle.factor[i] = word(row, 2 * i) | 1;
    shuffle.term[i] = word(row, 2 * i + 1);
  }
  return shuffle;
}

// The draws [first, first + count), and where they go.
struct Run {
  Run(int64_t first, int64_t count, bool mirrored) : first(first), count(count) {
    check(first >= 0 && count >= 0 && first <= INT64_MAX - count,
          "first and count must not be negative, got ", first, " and ", count);
    const int64_t size = mirrored ? 2 * count : count;
    src = torch::stable::empty({size}, ScalarType::Int);
    dst = torch::stable::empty({size}, ScalarType::Int);
  }
  template <class F>
  void each_task(const F& f) const {
    for_each_task((count + kDrawsPerTask - 1) / kDrawsPerTask, [&](int64_t task) {
      const int64_t begin = first + task * kDrawsPerTask;
      f(begin, std::min(begin + kDrawsPerTask, first + count));
    });
  }
  int32_t* sources() const { return static_cast<int32_t*>(src.data_ptr()); }
  int32_t* destinations() const { return static_cast<int32_t*>(dst.data_ptr()); }

  int64_t first, count;
  Tensor src, dst;
};

// A number of [0, size) from 64 bits.
inline uint64_t below(uint64_t drawn, uint64_t size) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(drawn) * size) >> 64);
}

// Nodes in blocks of equal size, up to one node: before they are shuffled, block b holds
// [start(b), start(b + 1)).
struct SbmCall {
  uint64_t nodes, blocks, inside;  // inside: the chance of an edge inside a block, times 2^63
  uint64_t key;
  bool mirrored;
  Shuffle shuffle;

  uint64_t start(uint64_t block) const { return (block * nodes + blocks - 1) / blocks; }
  // Walks along the bijection's cycle to the next number that is a node.
  uint64_t shuffled(uint64_t position) const {
    do {
      position = shuffle(position);
    } while (position >= nodes);
    return position;
  }
  void draw(uint64_t number, int32_t& src, int32_t& dst) const {
    const uint64_t row = row_key(key, number);
    const uint64_t u = below(word(row, 0), nodes);
    const uint64_t block = u * blocks / nodes, first = start(block);
    const uint64_t size = start(block + 1) - first;
    uint64_t v;
    if ((word(row, 1) >> 1) < inside || size == nodes) {
      v = first + below(word(row, 2), size);
    } else {
      v = below(word(row, 2), nodes - size);
      if (v >= first) v += size;
    }
    src = static_cast<int32_t>(shuffled(u));
    dst = static_cast<int32_t>(shuffled(v));
  }
};

int bits_of(int64_t num_nodes) {
  int bits = 0;
  while ((int64_t{1} << bits) < num_nodes) ++bits;
  return bits;
}

}  // namespace

std::tuple<Tensor, Tensor> rmat_edges(int64_t scale, int64_t limit_a, int64_t limit_b,
                                      int64_t limit_c, int64_t key, int64_t first, int64_t count,
                                      bool mirrored) {
  check(scale >= 0 && scale <= kMostBits - 1, "scale must lie in [0, 30], got ", scale);
  check(0 <= limit_a && limit_a <= limit_b && limit_b <= limit_c &&
            limit_c <= (int64_t{1} << 32),
        "limits must rise from 0 to 2^32");
  const RmatCall call{static_cast<int>(scale),
                      {static_cast<uint64_t>(limit_a), static_cast<uint64_t>(limit_b),
                       static_cast<uint64_t>(limit_c)},
                      static_cast<uint64_t>(key),
                      mirrored,
                      make_shuffle(static_cast<int>(scale), static_cast<uint64_t>(key))};
  const Run run(first, count, mirrored);
  const auto draw = GNN_DIST_KERNELS(synthetic).rmat32;
  run.each_task([&](int64_t begin, int64_t end) {
    draw(call, first, begin, end, run.sources(), run.destinations());
  });
  return {run.src, run.dst};
}

std::tuple<Tensor, Tensor> sbm_edges(int64_t nodes, int64_t blocks, int64_t inside, int64_t key,
                                     int64_t first, int64_t count, bool mirrored) {
  check(nodes >= 1 && nodes <= INT32_MAX, "nodes must lie in [1, 2^31), got ", nodes);
  check(blocks >= 1 && blocks <= nodes, "blocks must lie in [1, nodes], got ", blocks);
  check(inside >= 0, "inside must not be negative, got ", inside);
  const SbmCall call{static_cast<uint64_t>(nodes),  static_cast<uint64_t>(blocks),
                     static_cast<uint64_t>(inside), static_cast<uint64_t>(key),
                     mirrored,
                     make_shuffle(bits_of(nodes), static_cast<uint64_t>(key))};
  const Run run(first, count, mirrored);
  run.each_task([&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      int32_t u, v;
      call.draw(static_cast<uint64_t>(number), u, v);
      const int64_t at = (number - first) * (mirrored ? 2 : 1);
      run.sources()[at] = u;
      run.destinations()[at] = v;
      if (mirrored) {
        run.sources()[at + 1] = v;
        run.destinations()[at + 1] = u;
      }
    }
  });
  return {run.src, run.dst};
}

// The block of each node after the shuffle, int64 (nodes,).
Tensor sbm_blocks(int64_t nodes, int64_t blocks, int64_t key) {
  check(nodes >= 1 && nodes <= INT32_MAX, "nodes must lie in [1, 2^31), got ", nodes);
  check(blocks >= 1 && blocks <= nodes, "blocks must lie in [1, nodes], got ", blocks);
  const SbmCall call{static_cast<uint64_t>(nodes), static_cast<uint64_t>(blocks), 0, 0, false,
                     make_shuffle(bits_of(nodes), static_cast<uint64_t>(key))};
  const Tensor block = torch::stable::empty({nodes}, ScalarType::Long);
  auto* out = static_cast<int64_t*>(block.data_ptr());
  for_each_range(nodes, kDrawsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      out[call.shuffled(static_cast<uint64_t>(u))] = u * blocks / nodes;
    }
  });
  return block;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "rmat_edges(int scale, int limit_a, int limit_b, int limit_c, int key, int first, int count, "
      "bool mirrored) -> (Tensor, Tensor)");
  m.def(
      "sbm_edges(int nodes, int blocks, int inside, int key, int first, int count, bool mirrored) "
      "-> (Tensor, Tensor)");
  m.def("sbm_blocks(int nodes, int blocks, int key) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CompositeExplicitAutograd, m) {
  m.impl("rmat_edges", TORCH_BOX(&gnn_dist::rmat_edges));
  m.impl("sbm_edges", TORCH_BOX(&gnn_dist::sbm_edges));
  m.impl("sbm_blocks", TORCH_BOX(&gnn_dist::sbm_blocks));
}
