// Sets of parts as bits, the least loaded part of a set, and what streams of edges leave of them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "draws.h"
#include "edges.h"

namespace gnn_dist {

constexpr int64_t kMostParts = 1 << 15;
constexpr int64_t kMostLoad = int64_t{1} << 46;

inline int64_t words_of(int64_t num_parts) { return (num_parts + 63) / 64; }

inline void check_num_parts(int64_t num_parts) {
  check(num_parts >= 1 && num_parts <= kMostParts, "num_parts must lie in [1, ", kMostParts,
        "], got ", num_parts);
}

// For each node the parts that hold one of its edges.
struct CloneTable {
  uint64_t* bits;
  int64_t num_nodes;
  int64_t words;  // of a row

  uint64_t* row(int64_t node) const { return bits + node * words; }
  void add(int64_t node, int64_t part) const {
    row(node)[part / 64] |= uint64_t{1} << (part % 64);
  }
};

inline CloneTable clone_table(const Tensor& clones, int64_t num_parts) {
  check_num_parts(num_parts);
  check_dtype(clones, ScalarType::Long, "clones");
  check(clones.dim() == 2 && clones.is_contiguous() && clones.size(1) == words_of(num_parts),
        "clones must be contiguous of shape (N, ", words_of(num_parts), ")");
  return {static_cast<uint64_t*>(clones.data_ptr()), clones.size(0), words_of(num_parts)};
}

// Calls f with the number of words as a type: 1, or 0 for any number.
template <class F>
void with_words(int64_t words, const F& f) {
  if (words == 1) {
    f(std::integral_constant<int, 1>{});
  } else {
    f(std::integral_constant<int, 0>{});
  }
}

// Parts and the number of edges in each. A set is a function from the number of a word to its bits.
// Of equally loaded parts the first at or after `start` is taken, in a circle of ring() places.
template <int kWords>
class PartLoads {
 public:
  PartLoads(int64_t* loads, int64_t num_parts, int64_t limit)
      : loads_(loads), num_parts_(num_parts), limit_(limit), words_(words_of(num_parts)),
        open_(words_), lowest_(words_) {
    while (ring_ < 64 * words_) ring_ *= 2;
    for (int64_t part = 0; part < num_parts; ++part) {
      if (loads[part] < limit) open_[part / 64] |= bit(part);
    }
    most_ = *std::max_element(loads, loads + num_parts);
    find_lowest();
  }

  int64_t words() const { return kWords ? kWords : words_; }
  int64_t ring() const { return ring_; }
  int64_t load(int64_t part) const { return loads_[part]; }
  int64_t most() const { return most_; }
  int64_t least() const { return least_; }
  // The bits of the parts that may be given more edges.
  uint64_t open(int64_t word) const { return open_[word]; }
  bool is_open(int64_t part) const { return (open_[part / 64] & bit(part)) != 0; }

  // What to compare parts by: load, then place in the circle. Part -1 comes last.
  int64_t rank(int64_t part, int64_t start) const {
    return part < 0 ? INT64_MAX : loads_[part] * ring_ + ((part - start) & (ring_ - 1));
  }

  // The part of lowest rank in a set of open parts, -1 if it is empty.
  template <class Set>
  int64_t least_of(const Set& set, int64_t start) const {
    const int64_t low =
        first_from([&](int64_t word) { return set(word) & lowest_[word]; }, start);
    if (low >= 0) return low;
    int64_t best = -1, best_rank = INT64_MAX;
    for (int64_t word = 0; word < words(); ++word) {
      for (uint64_t bits = set(word); bits != 0; bits &= bits - 1) {
        const int64_t part = word * 64 + __builtin_ctzll(bits);
        const int64_t here = rank(part, start);
        if (here < best_rank) best = part, best_rank = here;
      }
    }
    return best;
  }
  int64_t least_of_all(int64_t start) const {
    return first_from([&](int64_t word) { return lowest_[word]; }, start);
  }

  void add(int64_t part) {
    const int64_t load = ++loads_[part];
    most_ = std::max(most_, load);
    if (load >= limit_) open_[part / 64] &= ~bit(part);
    if (load != least_ + 1) return;
    lowest_[part / 64] &= ~bit(part);
    for (int64_t word = 0; word < words(); ++word) {
      if (lowest_[word] != 0) return;
    }
    find_lowest();
  }

 private:
  static uint64_t bit(int64_t part) { return uint64_t{1} << (part % 64); }

  template <class Set>
  int64_t first_from(const Set& set, int64_t start) const {
    const int64_t first = start / 64;
    if (first < words()) {
      const uint64_t bits = set(first) & (~uint64_t{0} << (start % 64));
      if (bits != 0) return first * 64 + __builtin_ctzll(bits);
    }
    for (int64_t word = first + 1; word < words(); ++word) {
      if (const uint64_t bits = set(word)) return word * 64 + __builtin_ctzll(bits);
    }
    for (int64_t word = 0; word < words() && word <= first; ++word) {
      if (const uint64_t bits = set(word)) return word * 64 + __builtin_ctzll(bits);
    }
    return -1;
  }

  // A load is the lowest for P edges on average, so that this costs little per edge.
  void find_lowest() {
    least_ = *std::min_element(loads_, loads_ + num_parts_);
    for (int64_t part = 0; part < num_parts_; ++part) {
      if (loads_[part] == least_ && is_open(part)) lowest_[part / 64] |= bit(part);
    }
  }

  int64_t* loads_;
  int64_t num_parts_, limit_, words_;
  int64_t ring_ = 64, most_ = 0, least_ = 0;
  std::vector<uint64_t> open_, lowest_;
};

// The arguments that all assignments of a stream's edges share.
struct EdgeStreamView {
  int32_t* parts;
  CloneTable clones;
  int64_t* loads;
  const int32_t* degree;  // null where it is not asked for
  int64_t num_parts;
  int64_t limit;
  uint64_t key;
  uint64_t first;  // the number of the chunk's first edge in the stream

  uint64_t draw(int64_t i) const { return word(key, first + static_cast<uint64_t>(i)); }
  void prefetch(int64_t node) const {
    __builtin_prefetch(clones.row(node), 1);
    if (degree != nullptr) __builtin_prefetch(degree + node);
  }
  void assign(int64_t i, int64_t u, int64_t v, int64_t part) const {
    clones.add(u, part);
    clones.add(v, part);
    parts[i] = static_cast<int32_t>(part);
  }
};

inline EdgeStreamView edge_stream_view(const Tensor& parts, const Tensor& clones,
                                       const Tensor& loads, int64_t limit, int64_t key,
                                       int64_t first) {
  EdgeStreamView view{};
  view.parts = writable_flat<int32_t>(parts, ScalarType::Int, "parts");
  view.loads = writable_flat<int64_t>(loads, ScalarType::Long, "loads");
  view.num_parts = loads.size(0);
  view.clones = clone_table(clones, view.num_parts);
  check(limit >= 0 && limit <= kMostLoad, "limit must lie in [0, 2^46], got ", limit);
  view.limit = limit;
  view.key = static_cast<uint64_t>(key);
  view.first = static_cast<uint64_t>(first);
  return view;
}

inline EdgeStreamView edge_stream_view(const Tensor& parts, const Tensor& clones,
                                       const Tensor& loads, const Tensor& degree, int64_t limit,
                                       int64_t key, int64_t first) {
  EdgeStreamView view = edge_stream_view(parts, clones, loads, limit, key, first);
  view.degree = flat<int32_t>(degree, ScalarType::Int, "degree");
  check(degree.size(0) == view.clones.num_nodes, "degree must have one element per node (",
        view.clones.num_nodes, "), got ", degree.size(0));
  return view;
}

// Refuses edges that the parts have no room for.
inline void check_room(const EdgeStreamView& view, int64_t num_edges) {
  int64_t room = 0;
  for (int64_t part = 0; part < view.num_parts; ++part) {
    check(view.loads[part] >= 0 && view.loads[part] <= kMostLoad,
          "loads must lie in [0, 2^46], got ", view.loads[part]);
    room += std::max<int64_t>(0, view.limit - view.loads[part]);
  }
  check(room >= num_edges, "limit must leave room for ", num_edges, " edges, ", room, " fit");
}

inline void check_parts(const Tensor& parts, int64_t num_edges) {
  check(parts.size(0) == num_edges, "parts must have one element per edge (", num_edges,
        "), got ", parts.size(0));
}

}  // namespace gnn_dist
