// Streaming partitioners: one pass over the rows, in which each node is placed for good.
//
// Passes are sequential, since a node's place depends on where the ones before it went; memory is
// asked for some rows ahead, so that a random read costs far less than its latency.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tensors.h"

namespace gnn_dist {

namespace {

constexpr int64_t kRowsAhead = 24;        // rows between asking for their entries' ids and use
constexpr int64_t kEntriesAhead = 48;     // entries between asking for a source's state and use
constexpr int64_t kBytesPerWord = 8;      // pins of eight parts are counted in one word
constexpr int64_t kMostPins = 255;        // a count that has reached this is never lowered
constexpr double kMostLevel = 1e30;       // where nothing limits it
constexpr int64_t kWordAdds = 255;        // after as many additions a byte of a sum may be full
constexpr uint64_t kLow = 0x0101010101010101, kLow7 = 0x7f7f7f7f7f7f7f7f;

enum Rule : int64_t { kLdg = 0, kFennel = 1 };

struct StreamCall {
  int32_t* parts;
  int64_t* loads;               // (P, K)
  uint8_t* pins;                // (N, stride) or nullptr
  int64_t stride;
  const int64_t* indptr;
  const int32_t* edge_weight;   // or nullptr
  const int64_t* order;         // or nullptr: ascending
  const int64_t* node_weight;   // (N, K)
  const int64_t* limits;        // (P, K)
  const double* targets;        // (P, K), positive
  int64_t num_nodes, nnz, steps, num_parts, num_constraints;
  Rule rule;
  double penalty;               // fennel's alpha * gamma, for a part as full as its target
  bool counted;                 // loads hold the weights of nodes that have a part
};

// 0 or 1 in each byte: whether that byte of the word is other than zero.
inline uint64_t nonzero_bytes(uint64_t word) {
  return ((((word & kLow7) + kLow7) | word) >> 7) & kLow;
}

// What parts hold, and their limits. In passes over a whole assignment these are the caller's.
//
// While parts fill, a part may grow ahead of the others, but not in one constraint alone: parts of
// which one has many small nodes and one has few large ones would in the end have no room for what
// is left. What has been seen of a constraint, as a share of all of it, times the target is what a
// part would hold if all grew together. A part's level is how many times that it holds of the
// constraint of which it has the least; of the others it may hold as much, and the slack that it
// has in the end.
class Loads {
 public:
  Loads(const StreamCall& call, bool filling)
      : call_(call),
        limits_(call.num_parts * call.num_constraints),
        fullness_(call.num_parts),
        total_(call.num_constraints),
        seen_(call.num_constraints),
        share_(call.num_constraints),
        filling_(filling) {
    const int64_t columns = call.num_constraints;
    for (int64_t i = 0; i < call.num_parts * columns; ++i) {
      limits_[i] = static_cast<double>(call.limits[i]);
    }
    for (int64_t q = 0; q < call.num_parts; ++q) fullness_[q] = fullness(q);
    for (int64_t v = 0; filling && v < call.num_nodes; ++v) {
      for (int64_t k = 0; k < columns; ++k) total_[k] += call.node_weight[v * columns + k];
    }
  }
  double operator[](int64_t part) const { return fullness_[part]; }

  void add(int64_t part, const int64_t* weight, int64_t sign) {
    int64_t* load = call_.loads + part * call_.num_constraints;
    for (int64_t k = 0; k < call_.num_constraints; ++k) load[k] += sign * weight[k];
    fullness_[part] = fullness(part);
  }
  // A node is about to be placed: limits rise by its share.
  void see(const int64_t* weight) {
    if (!filling_) return;
    for (int64_t k = 0; k < call_.num_constraints; ++k) {
      if (total_[k] == 0) continue;
      seen_[k] += weight[k];
      share_[k] = static_cast<double>(seen_[k]) / static_cast<double>(total_[k]);
    }
    for (int64_t q = 0; q < call_.num_parts; ++q) set_limits(q);
  }
  // By how much a node would add to what is above limits, in parts of the targets.
  double overflow(int64_t part, const int64_t* weight) const {
    const int64_t first = part * call_.num_constraints;
    double sum = 0;
    for (int64_t k = 0; k < call_.num_constraints; ++k) {
      const double room = limits_[first + k] - static_cast<double>(call_.loads[first + k]);
      const double over = static_cast<double>(weight[k]) - std::max(room, 0.0);
      if (weight[k] > 0 && over > 0) sum += over / call_.targets[first + k];
    }
    return sum;
  }

 private:
  void set_limits(int64_t part) {
    const int64_t first = part * call_.num_constraints;
    double level = kMostLevel;
    for (int64_t k = 0; k < call_.num_constraints; ++k) {
      if (share_[k] <= 0) continue;
      const double load = static_cast<double>(call_.loads[first + k]);
      level = std::min(level, load / (share_[k] * call_.targets[first + k]));
    }
    level = std::max(level, 1.0);
    for (int64_t k = 0; k < call_.num_constraints; ++k) {
      const double limit = static_cast<double>(call_.limits[first + k]);
      const double target = call_.targets[first + k];
      limits_[first + k] = std::min(limit, level * share_[k] * target + (limit - target));
    }
  }
  // The fullest constraint of a part: of its limits, for ldg, or of its targets.
  double fullness(int64_t part) const {
    const int64_t first = part * call_.num_constraints;
    double most = 0;
    for (int64_t k = 0; k < call_.num_constraints; ++k) {
      const double load = static_cast<double>(call_.loads[first + k]);
      const double whole = call_.rule == kLdg ? static_cast<double>(call_.limits[first + k])
                                              : call_.targets[first + k];
      most = std::max(most, load / whole);
    }
    return most;
  }

  const StreamCall& call_;
  std::vector<double> limits_, fullness_;
  std::vector<int64_t> total_, seen_;
  std::vector<double> share_;
  bool filling_;
};

template <class Index>
class Stream {
 public:
  Stream(const StreamCall& call, const Index* indices)
      : call_(call), indices_(indices), loads_(call, !call.counted), near_(call.stride) {}

  void run() {
    for (int64_t i = 0; i < std::min(kRowsAhead, call_.steps); ++i) ask_for_row(i);
    int64_t asked = 0;  // rows whose sources' states were asked for
    for (int64_t i = 0; i < call_.steps; ++i) {
      if (i + kRowsAhead < call_.steps) ask_for_row(i + kRowsAhead);
      for (asked = std::max(asked, i); asked < std::min(i + kRowsAhead / 2, call_.steps); ++asked) {
        const auto [begin, end] = row(node(asked));
        ask_for_states(begin, std::min(end, begin + kEntriesAhead));
      }
      place(node(i));
    }
  }

  // Adds the pins of all nodes that have a part.
  void add_all_pins() {
    for (int64_t v = 0; v < call_.num_nodes; ++v) {
      const int64_t part = call_.parts[v];
      check_index(part >= -1 && part < call_.num_parts, "parts must lie in [-1, ",
                  call_.num_parts, "), got ", part);
      if (v + kRowsAhead < call_.num_nodes) {
        const auto [begin, end] = row(v + kRowsAhead);
        ask_for_states(begin, std::min(end, begin + kEntriesAhead));
      }
      if (part >= 0) add_pins(v, part);
    }
  }

 private:
  int64_t node(int64_t i) const {
    if (call_.order == nullptr) return i;
    const int64_t v = call_.order[i];
    check_index(v >= 0 && v < call_.num_nodes, "order must lie in [0, ", call_.num_nodes,
                "), got ", v);
    return v;
  }
  std::pair<int64_t, int64_t> row(int64_t v) const {
    const int64_t begin = call_.indptr[v], end = call_.indptr[v + 1];
    check_index(begin >= 0 && begin <= end && end <= call_.nnz,
                "indptr must not fall, it does at row ", v);
    return {begin, end};
  }
  int64_t source(int64_t entry) const {
    const int64_t u = indices_[entry];
    check_index(u >= 0 && u < call_.num_nodes, "indices must lie in [0, ", call_.num_nodes,
                "), got ", u);
    return u;
  }
  void ask_for_row(int64_t i) const {
    const int64_t v = node(i), begin = row(v).first;
    if (call_.order != nullptr) {
      __builtin_prefetch(indices_ + begin);
      __builtin_prefetch(call_.node_weight + v * call_.num_constraints);
    }
  }
  void ask_for_states(int64_t begin, int64_t end) const {
    for (int64_t e = begin; e < end; ++e) ask_for_state(indices_[e]);
  }
  void ask_for_state(int64_t u) const {
    if (u < 0 || u >= call_.num_nodes) return;  // refused when its turn comes
    if (call_.pins != nullptr) {
      __builtin_prefetch(call_.pins + u * call_.stride, 1);
    } else {
      __builtin_prefetch(call_.parts + u);
    }
  }

  void place(int64_t v) {
    const int64_t* weight = call_.node_weight + v * call_.num_constraints;
    const int64_t old = call_.parts[v];
    check_index(old >= -1 && old < call_.num_parts, "parts must lie in [-1, ", call_.num_parts,
                "), got ", old);
    if (old >= 0 && call_.counted) loads_.add(old, weight, -1);
    loads_.see(weight);
    std::fill(near_.begin(), near_.end(), 0);
    if (call_.pins != nullptr) {
      count_shared_nets(v, old);
    } else {
      count_neighbours(v);
    }
    const int64_t part = best(weight, old);
    call_.parts[v] = static_cast<int32_t>(part);
    loads_.add(part, weight, 1);
    if (call_.pins != nullptr) add_pins(v, part);
  }

  void count_neighbours(int64_t v) {
    const auto [begin, end] = row(v);
    for (int64_t e = begin; e < end; ++e) {
      if (e + kEntriesAhead < end) ask_for_state(indices_[e + kEntriesAhead]);
      const int64_t u = source(e);
      const int64_t part = u == v ? -1 : call_.parts[u];
      if (part < 0) continue;
      check_index(part < call_.num_parts, "parts must lie in [-1, ", call_.num_parts, "), got ",
                  part);
      near_[part] += call_.edge_weight == nullptr ? 1 : call_.edge_weight[e];
    }
  }

  // Calls f with the pins of each net that v is a pin of: its own, and those of its sources.
  template <class F>
  void for_each_net(int64_t v, const F& f) const {
    const auto [begin, end] = row(v);
    int64_t last = v;
    f(call_.pins + v * call_.stride);
    for (int64_t e = begin; e < end; ++e) {
      if (e + kEntriesAhead < end) ask_for_state(indices_[e + kEntriesAhead]);
      const int64_t u = source(e);
      if (u == v || u == last) continue;  // copies of an edge stand together
      last = u;
      f(call_.pins + u * call_.stride);
    }
  }

  // near[q] = nets of v that have a pin in q already; v's own pins are taken out on the way.
  void count_shared_nets(int64_t v, int64_t old) {
    const int64_t words = call_.stride / kBytesPerWord;
    sums_.assign(words, 0);
    int64_t adds = 0;
    for_each_net(v, [&](uint8_t* pins) {
      if (old >= 0 && pins[old] > 0 && pins[old] < kMostPins) --pins[old];
      for (int64_t w = 0; w < words; ++w) {
        uint64_t word;
        std::memcpy(&word, pins + w * kBytesPerWord, sizeof word);
        sums_[w] += nonzero_bytes(word);
      }
      if (++adds == kWordAdds) {
        flush_sums();
        adds = 0;
      }
    });
    flush_sums();
  }
  void flush_sums() {
    const auto* bytes = reinterpret_cast<const uint8_t*>(sums_.data());
    for (int64_t q = 0; q < call_.stride; ++q) near_[q] += bytes[q];
    std::fill(sums_.begin(), sums_.end(), 0);
  }
  void add_pins(int64_t v, int64_t part) const {
    for_each_net(v, [&](uint8_t* pins) { pins[part] += pins[part] < kMostPins; });
  }

  double score(int64_t part) const {
    const double near = static_cast<double>(near_[part]), full = loads_[part];
    if (call_.rule == kLdg) return near * (1.0 - full);
    return near - call_.penalty * std::sqrt(full);
  }

  // The best score among parts with room; equal scores: the part that the node comes from, then
  // the emptier, then the lower. Without room anywhere: the part where the least is above limits.
  int64_t best(const int64_t* weight, int64_t old) const {
    int64_t found = -1;
    double least = 0, most = 0;
    for (int64_t q = 0; q < call_.num_parts; ++q) {
      const double over = loads_.overflow(q, weight), value = score(q);
      const bool better =
          found < 0 || over < least ||
          (over == least &&
           (value > most ||
            (value == most && found != old && (q == old || loads_[q] < loads_[found]))));
      if (!better) continue;
      found = q;
      least = over;
      most = value;
    }
    return found;
  }

  StreamCall call_;
  const Index* indices_;
  Loads loads_;
  std::vector<int64_t> near_;
  std::vector<uint64_t> sums_;
};

template <class T>
T* table(const Tensor& tensor, ScalarType dtype, int64_t rows, int64_t columns, const char* name) {
  check_dtype(tensor, dtype, name);
  check(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns &&
            tensor.is_contiguous(),
        name, " must be contiguous of shape (", rows, ", ", columns, ")");
  return static_cast<T*>(tensor.data_ptr());
}

void set_structure(StreamCall& call, const Tensor& indptr, const Tensor& indices) {
  call.indptr = flat<int64_t>(indptr, ScalarType::Long, "indptr");
  check(indices.dim() == 1, "indices must be one-dimensional");
  check(indptr.size(0) > 0, "indptr must have at least one element");
  call.num_nodes = indptr.size(0) - 1;
  call.nnz = indices.size(0);
}

void set_pins(StreamCall& call, const OptionalTensor& pins) {
  call.pins = nullptr;
  call.stride = call.num_parts;
  if (!pins.has_value()) return;
  check(pins->dim() == 2, "pins must have two dimensions");
  call.stride = pins->size(1);
  check(call.stride >= call.num_parts && call.stride % kBytesPerWord == 0,
        "pins must have a multiple of 8 columns, at least one a part, got ", call.stride);
  call.pins = table<uint8_t>(*pins, ScalarType::Byte, call.num_nodes, call.stride, "pins");
}

void set_optional(StreamCall& call, const OptionalTensor& edge_weight,
                  const OptionalTensor& order) {
  call.edge_weight = nullptr;
  if (edge_weight.has_value()) {
    check(call.pins == nullptr, "edge_weight does not go with pins");
    call.edge_weight = flat<int32_t>(*edge_weight, ScalarType::Int, "edge_weight");
    check(edge_weight->size(0) == call.nnz, "edge_weight must have one element per entry");
  }
  call.order = nullptr;
  call.steps = call.num_nodes;
  if (order.has_value()) {
    call.order = flat<int64_t>(*order, ScalarType::Long, "order");
    call.steps = order->size(0);
  }
}

// Calls f with a stream over indices of either type.
template <class F>
void with_stream(const StreamCall& call, const Tensor& indices, const F& f) {
  if (indices.scalar_type() == ScalarType::Long) {
    f(Stream<int64_t>(call, flat<int64_t>(indices, ScalarType::Long, "indices")));
  } else {
    f(Stream<int32_t>(call, flat<int32_t>(indices, ScalarType::Int, "indices")));
  }
}

}  // namespace

void stream_nodes(Tensor parts, Tensor loads, OptionalTensor pins, Tensor indptr, Tensor indices,
                  OptionalTensor edge_weight, OptionalTensor order, Tensor node_weight,
                  Tensor limits, Tensor targets, int64_t rule, double penalty, bool counted) {
  StreamCall call{};
  set_structure(call, indptr, indices);
  check(limits.dim() == 2 && limits.size(0) > 0 && limits.size(0) <= INT32_MAX,
        "limits must have a row per part, at least one");
  call.num_parts = limits.size(0);
  call.num_constraints = limits.size(1);
  call.parts = const_cast<int32_t*>(flat<int32_t>(parts, ScalarType::Int, "parts"));
  check(parts.size(0) == call.num_nodes, "parts must have one element per node");
  const int64_t rows = call.num_parts, columns = call.num_constraints;
  call.loads = table<int64_t>(loads, ScalarType::Long, rows, columns, "loads");
  call.limits = table<int64_t>(limits, ScalarType::Long, rows, columns, "limits");
  call.targets = table<double>(targets, ScalarType::Double, rows, columns, "targets");
  call.node_weight =
      table<int64_t>(node_weight, ScalarType::Long, call.num_nodes, columns, "node_weight");
  set_pins(call, pins);
  set_optional(call, edge_weight, order);
  check(rule == kLdg || rule == kFennel, "rule must be 0 (ldg) or 1 (fennel), got ", rule);
  call.rule = static_cast<Rule>(rule);
  check(penalty >= 0, "penalty must not be negative, got ", penalty);
  call.penalty = penalty;
  for (int64_t i = 0; i < rows * columns; ++i) {
    check(call.targets[i] > 0 && call.limits[i] > 0, "targets and limits must be positive, got ",
          call.targets[i], " and ", call.limits[i]);
  }
  call.counted = counted;
  with_stream(call, indices, [](auto&& stream) { stream.run(); });
}

void add_pins(Tensor pins, Tensor parts, Tensor indptr, Tensor indices) {
  StreamCall call{};
  set_structure(call, indptr, indices);
  check(pins.dim() == 2, "pins must have two dimensions");
  call.num_parts = pins.size(1);
  call.parts = const_cast<int32_t*>(flat<int32_t>(parts, ScalarType::Int, "parts"));
  check(parts.size(0) == call.num_nodes, "parts must have one element per node");
  set_pins(call, pins);
  with_stream(call, indices, [](auto&& stream) { stream.add_all_pins(); });
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "stream_nodes(Tensor(a!) parts, Tensor(b!) loads, Tensor(c!)? pins, Tensor indptr, "
      "Tensor indices, Tensor? edge_weight, Tensor? order, Tensor node_weight, Tensor limits, "
      "Tensor targets, int rule, float penalty, bool counted) -> ()");
  m.def("add_pins(Tensor(a!) pins, Tensor parts, Tensor indptr, Tensor indices) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("stream_nodes", TORCH_BOX(&gnn_dist::stream_nodes));
  m.impl("add_pins", TORCH_BOX(&gnn_dist::add_pins));
}
