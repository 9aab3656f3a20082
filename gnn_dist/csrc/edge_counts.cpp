// What is counted along a stream of edges: ids, and edges between clusters.
#include <algorithm>

#include "draws.h"
#include "edges.h"

namespace gnn_dist {

namespace {

constexpr int64_t kNodeAhead = 48;   // edges between asking for its ends and reading them
constexpr int64_t kPairAhead = 24;   // the same for the pair of their clusters
constexpr int64_t kRing = 32;        // pairs on their way, a power of two above kPairAhead
constexpr int64_t kNone = -1;
constexpr int64_t kMostClusters = 1 << 24;  // leaves 15 bits for counts
constexpr int64_t kMostCount = 1024;  // pairs are told apart by their counts up to this
constexpr int kHashBits = 16;         // and by so many bits of their hashes

// How many edges pairs of clusters share, for as many pairs as there is room for. A slot is a pair's
// number in its high bits and its edges, which stay at the most there is room for, in its low ones;
// 0 where it is free. Few slots are used at a time, so that most pairs are found in one cache line.
class Pairs {
 public:
  Pairs(int64_t* slots, int64_t* used, int64_t size, int count_bits)
      : slots_(slots), used_(used), mask_(size - 1), count_bits_(count_bits),
        most_((int64_t{1} << count_bits) - 1) {}

  void ask_for(int64_t pair) const { __builtin_prefetch(slots_ + home(pair), 1); }
  void add(int64_t pair) {
    const int64_t at = find(pair);
    if (slots_[at] != 0) {
      slots_[at] += count(slots_[at]) < most_;
    } else if (*used_ < (mask_ + 1) / 8 * 3) {
      slots_[at] = pair << count_bits_ | 1;
      ++*used_;
    } else {
      shrink();
      add(pair);
    }
  }

 private:
  static uint64_t hash(int64_t pair) { return mix(static_cast<uint64_t>(pair) + kGolden); }
  int64_t home(int64_t pair) const { return static_cast<int64_t>(hash(pair)) & mask_; }
  int64_t pair(int64_t slot) const { return slot >> count_bits_; }
  int64_t count(int64_t slot) const { return slot & most_; }
  int64_t count_class(int64_t slot) const { return std::min(count(slot), kMostCount); }
  int64_t hash_class(int64_t slot) const {
    return static_cast<int64_t>(hash(pair(slot)) >> (64 - kHashBits));
  }
  // The slot of a pair, or the free one where it belongs.
  int64_t find(int64_t of) const {
    int64_t at = home(of);
    while (slots_[at] != 0 && pair(slots_[at]) != of) at = (at + 1) & mask_;
    return at;
  }

  // Keeps the heavier ones, two thirds; among equals, those of the lowest hashes.
  void shrink() {
    std::vector<int64_t> with_count(kMostCount + 1), with_hash(int64_t{1} << kHashBits);
    for_each_used([&](int64_t slot) { ++with_count[count_class(slot)]; });
    int64_t last = kMostCount, room = (mask_ + 1) / 4;
    while (last > 1 && with_count[last] <= room) room -= with_count[last--];
    for_each_used([&](int64_t slot) {
      if (count_class(slot) == last) ++with_hash[hash_class(slot)];
    });
    int64_t bound = 0;
    while (bound >> kHashBits == 0 && with_hash[bound] <= room) room -= with_hash[bound++];
    keep([&](int64_t slot) {
      const int64_t count = count_class(slot);
      return count > last || (count == last && hash_class(slot) < bound);
    });
  }
  // Takes the pairs out one after the other, from a free slot on, and puts those to be kept back:
  // each finds a slot no further from its home, so that nothing is looked at twice.
  template <class Chosen>
  void keep(const Chosen& chosen) {
    int64_t first = 0;
    while (first < mask_ && slots_[first] != 0) ++first;
    *used_ = 0;
    for (int64_t i = 1; i <= mask_ + 1; ++i) {
      int64_t& slot = slots_[(first + i) & mask_];
      if (slot == 0) continue;
      const int64_t taken = slot;
      slot = 0;
      if (!chosen(taken)) continue;
      slots_[find(pair(taken))] = taken;
      ++*used_;
    }
  }
  template <class F>
  void for_each_used(const F& f) const {
    for (int64_t at = 0; at <= mask_; ++at) {
      if (slots_[at] != 0) f(slots_[at]);
    }
  }

  int64_t* slots_;
  int64_t* used_;
  int64_t mask_;
  int count_bits_;
  int64_t most_;
};

[[noreturn, gnu::cold]] void refuse_cluster(int64_t c, int64_t num_clusters) {
  throw std::out_of_range(text("clusters must lie in [0, ", num_clusters, "), got ", c));
}

}  // namespace

void count_ids(Tensor counts, Tensor ids) {
  auto* count = writable_flat<int64_t>(counts, ScalarType::Long, "counts");
  const auto run = [&](const auto* id) {
    const int64_t size = ids.size(0);
    check_index(all_nodes(id, size, counts.size(0)), "ids must lie in [0, ", counts.size(0), ")");
    for (int64_t i = 0; i < size; ++i) {
      if (i + kNodeAhead < size) __builtin_prefetch(count + id[i + kNodeAhead], 1);
      ++count[id[i]];
    }
  };
  if (ids.scalar_type() == ScalarType::Int) {
    run(flat<int32_t>(ids, ScalarType::Int, "ids"));
  } else {
    run(flat<int64_t>(ids, ScalarType::Long, "ids"));
  }
}

void count_pairs(Tensor slots, Tensor used, Tensor src, Tensor dst, Tensor cluster,
                 int64_t num_clusters) {
  auto* slot = writable_flat<int64_t>(slots, ScalarType::Long, "slots");
  const int64_t size = slots.size(0);
  check(size >= 8 && (size & (size - 1)) == 0, "slots must number a power of two from 8, got ",
        size);
  check(num_clusters > 0 && num_clusters <= kMostClusters, "num_clusters must lie in [1, ",
        kMostClusters, "], got ", num_clusters);
  int count_bits = 63;
  while (num_clusters * num_clusters - 1 >= int64_t{1} << (63 - count_bits)) --count_bits;
  const auto* of = flat<int32_t>(cluster, ScalarType::Int, "cluster");
  auto* filled = writable_flat<int64_t>(used, ScalarType::Long, "used");
  check(used.size(0) == 1, "used must have one element, got ", used.size(0));
  check(*filled >= 0 && *filled < size, "used must lie in [0, ", size, "), got ", *filled);
  Pairs pairs(slot, filled, size, count_bits);
  const auto cluster_of = [&](int64_t v) {
    if (of[v] < 0 || of[v] >= num_clusters) refuse_cluster(of[v], num_clusters);
    return int64_t{of[v]};
  };
  with_edges(src, dst, cluster.size(0), [&](const auto& edges) {
    int64_t ring[kRing];
    for (int64_t e = -kPairAhead; e < edges.size; ++e) {
      const int64_t far = e + kNodeAhead, near = e + kPairAhead;
      if (far < edges.size) {
        __builtin_prefetch(of + edges.src[far]);
        __builtin_prefetch(of + edges.dst[far]);
      }
      if (near < edges.size) {
        const int64_t a = cluster_of(edges.src[near]), b = cluster_of(edges.dst[near]);
        const int64_t key = std::min(a, b) * num_clusters + std::max(a, b);
        ring[near % kRing] = a == b ? kNone : key;
        if (a != b) pairs.ask_for(key);
      }
      if (e >= 0 && ring[e % kRing] != kNone) pairs.add(ring[e % kRing]);
    }
  });
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("count_ids(Tensor(a!) counts, Tensor ids) -> ()");
  m.def(
      "count_pairs(Tensor(a!) slots, Tensor(b!) used, Tensor src, Tensor dst, Tensor cluster, "
      "int num_clusters) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("count_ids", TORCH_BOX(&gnn_dist::count_ids));
  m.impl("count_pairs", TORCH_BOX(&gnn_dist::count_pairs));
}
