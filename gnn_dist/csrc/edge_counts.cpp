// What is counted along a stream of edges: ids, and edges between clusters.
#include <algorithm>

#include "draws.h"
#include "edges.h"

namespace gnn_dist {

namespace {

constexpr int64_t kNodeAhead = 48;   // edges between asking for its ends and reading them
constexpr int64_t kPairAhead = 24;   // the same for the pair of their clusters
constexpr int64_t kRing = 32;        // pairs on their way, a power of two above kPairAhead
constexpr int64_t kLineSlots = 4;    // of a cache line
constexpr int64_t kNone = -1;
constexpr int64_t kMostCount = 1024;  // pairs are told apart by their counts up to this
constexpr int kHashBits = 16;         // and by so many bits of their hashes

// How many edges pairs of clusters share, for as many pairs as there is room for.
class Pairs {
 public:
  struct Slot {
    int64_t key, count;
  };

  Pairs(Slot* slots, int64_t* used, int64_t size)
      : slots_(slots), used_(used), mask_(size - 1) {}

  void ask_for(int64_t key) const { __builtin_prefetch(slots_ + home(key), 1); }
  void add(int64_t key, int64_t count) {
    const int64_t at = find(key);
    if (slots_[at].key == kNone) {
      if (*used_ >= (mask_ + 1) / 4 * 3) {
        shrink();
        return add(key, count);
      }
      slots_[at] = {key, 0};
      ++*used_;
    }
    slots_[at].count += count;
  }

 private:
  static uint64_t hash(int64_t key) { return mix(static_cast<uint64_t>(key) + kGolden); }
  static int64_t class_of(const Slot& slot) {
    return std::clamp<int64_t>(slot.count, 0, kMostCount);
  }
  static int64_t hash_class(const Slot& slot) {
    return static_cast<int64_t>(hash(slot.key) >> (64 - kHashBits));
  }
  // The first slot of a cache line.
  int64_t home(int64_t key) const {
    return static_cast<int64_t>(hash(key)) & mask_ & ~(kLineSlots - 1);
  }
  // The slot of a pair, or the free one where it belongs.
  int64_t find(int64_t key) const {
    int64_t at = home(key);
    while (slots_[at].key != key && slots_[at].key != kNone) at = (at + 1) & mask_;
    return at;
  }

  // Keeps the heavier ones, half of the table; among equals, those of the lowest hashes.
  void shrink() {
    std::vector<int64_t> with_count(kMostCount + 1), with_hash(int64_t{1} << kHashBits);
    for_each_slot([&](const Slot& slot) { ++with_count[class_of(slot)]; });
    int64_t last = kMostCount, room = (mask_ + 1) / 2;
    while (last > 1 && with_count[last] <= room) room -= with_count[last--];
    for_each_slot([&](const Slot& slot) {
      if (class_of(slot) == last) ++with_hash[hash_class(slot)];
    });
    int64_t bound = 0;
    while (bound >> kHashBits == 0 && with_hash[bound] <= room) room -= with_hash[bound++];
    keep([&](const Slot& slot) {
      const int64_t count = class_of(slot);
      return count > last || (count == last && hash_class(slot) < bound);
    });
  }
  // Takes the pairs out one after the other, from a free slot on, and puts those to be kept back:
  // each finds a slot no further from its home, so that nothing is looked at twice.
  template <class Chosen>
  void keep(const Chosen& chosen) {
    int64_t first = 0;
    while (first < mask_ && slots_[first].key != kNone) ++first;
    *used_ = 0;
    for (int64_t i = 1; i <= mask_ + 1; ++i) {
      Slot& slot = slots_[(first + i) & mask_];
      if (slot.key == kNone) continue;
      const Slot taken = slot;
      slot.key = kNone;
      if (!chosen(taken)) continue;
      slots_[find(taken.key)] = taken;
      ++*used_;
    }
  }
  template <class F>
  void for_each_slot(const F& f) const {
    for (int64_t at = 0; at <= mask_; ++at) {
      if (slots_[at].key != kNone) f(slots_[at]);
    }
  }

  Slot* slots_;
  int64_t* used_;
  int64_t mask_;
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
  check_dtype(slots, ScalarType::Long, "slots");
  check(slots.dim() == 2 && slots.size(1) == 2 && slots.is_contiguous(),
        "slots must be contiguous of shape (S, 2)");
  const int64_t size = slots.size(0);
  check(size >= 8 && (size & (size - 1)) == 0, "slots must number a power of two from 8, got ",
        size);
  check(num_clusters > 0 && num_clusters <= INT32_MAX, "num_clusters must lie in [1, 2^31), got ",
        num_clusters);
  const auto* of = flat<int32_t>(cluster, ScalarType::Int, "cluster");
  auto* filled = writable_flat<int64_t>(used, ScalarType::Long, "used");
  check(used.size(0) == 1, "used must have one element, got ", used.size(0));
  check(*filled >= 0 && *filled < size, "used must lie in [0, ", size, "), got ", *filled);
  Pairs pairs(static_cast<Pairs::Slot*>(slots.data_ptr()), filled, size);
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
      if (e >= 0 && ring[e % kRing] != kNone) pairs.add(ring[e % kRing], 1);
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
