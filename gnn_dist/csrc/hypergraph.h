// Hypergraphs whose nodes are dealt out to parts: what the operators on partitions work on.
#pragma once

#include <algorithm>

#include "tensors.h"

namespace gnn_dist {

// Rows of one CSR structure, all of it checked: a walk needs no further checks.
struct Rows {
  const int64_t* ptr;
  const int32_t* ids;
  int64_t num_rows;
  int64_t nnz;

  Rows(const Tensor& indptr, const Tensor& indices, int64_t num_ids) {
    const CsrView csr = csr_view(indptr, indices);
    ptr = csr.indptr, ids = csr.indices, num_rows = csr.num_rows, nnz = csr.nnz;
    for (int64_t row = 0; row < num_rows; ++row) {
      check_index(ptr[row] <= ptr[row + 1], "indptr must not fall, it does at row ", row);
    }
    for (int64_t i = 0; i < nnz; ++i) {
      check_index(ids[i] >= 0 && ids[i] < num_ids, "indices must lie in [0, ", num_ids,
                  "), got ", ids[i]);
    }
  }
  struct Range {
    const int32_t *first, *last;
    const int32_t* begin() const { return first; }
    const int32_t* end() const { return last; }
  };
  Range operator[](int64_t row) const { return {ids + ptr[row], ids + ptr[row + 1]}; }
  int64_t size(int64_t row) const { return ptr[row + 1] - ptr[row]; }
};

// Every pin of net n lists net n among its nets, and no row lists anything twice.
struct Hypergraph {
  Rows nets;  // of each node
  Rows pins;  // of each net
  const int64_t* net_weight;

  int64_t num_nodes() const { return nets.num_rows; }
  int64_t num_nets() const { return pins.num_rows; }
};

inline Hypergraph hypergraph(const Tensor& net_ptr, const Tensor& nets, const Tensor& pin_ptr,
                             const Tensor& pins, const Tensor& net_weight) {
  check(net_ptr.dim() == 1 && net_ptr.size(0) > 0, "net_ptr must have at least one element");
  check(pin_ptr.dim() == 1 && pin_ptr.size(0) > 0, "pin_ptr must have at least one element");
  const int64_t num_nodes = net_ptr.size(0) - 1, num_nets = pin_ptr.size(0) - 1;
  check(num_nodes <= INT32_MAX && num_nets <= INT32_MAX,
        "nodes and nets must number less than 2^31");
  const auto* weight = flat<int64_t>(net_weight, ScalarType::Long, "net_weight");
  check(net_weight.size(0) == num_nets, "net_weight must have one element per net (", num_nets,
        "), got ", net_weight.size(0));
  const Hypergraph out{Rows(net_ptr, nets, num_nets), Rows(pin_ptr, pins, num_nodes), weight};
  check(out.nets.nnz == out.pins.nnz, "nets and pins must be each other's transpose, got ",
        out.nets.nnz, " and ", out.pins.nnz, " entries");
  std::vector<int64_t> next(out.nets.ptr, out.nets.ptr + num_nodes);
  for (int64_t net = 0; net < num_nets; ++net) {
    int32_t before = -1;
    for (const int32_t pin : out.pins[net]) {
      check(pin > before, "pins must ascend within nets, net ", net, " has ", pin, " after ",
            before);
      check(next[pin] < out.nets.ptr[pin + 1] && out.nets.ids[next[pin]] == net,
            "nets and pins must be each other's transpose, net ", net, " is no net of ", pin);
      ++next[pin];
      before = pin;
    }
  }
  return out;
}

// A contiguous int64 matrix of given shape.
inline const int64_t* matrix(const Tensor& tensor, int64_t rows, int64_t columns,
                             const char* name) {
  check_dtype(tensor, ScalarType::Long, name);
  check(tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == columns &&
            tensor.is_contiguous(),
        name, " must be contiguous of shape (", rows, ", ", columns, ")");
  return static_cast<const int64_t*>(tensor.data_ptr());
}

// What parts weigh, and how much they may, in each of several weights of nodes.
class Loads {
 public:
  Loads(const Tensor& node_weight, const Tensor& limits, const Tensor& assignment,
        int64_t num_nodes) {
    check(node_weight.dim() == 2 && limits.dim() == 2,
          "node_weight and limits must have two dimensions");
    num_parts = limits.size(0), num_weights = node_weight.size(1);
    check(num_parts >= 1 && num_parts <= INT32_MAX, "there must be at least one part");
    weight_ = matrix(node_weight, num_nodes, num_weights, "node_weight");
    limits_ = matrix(limits, num_parts, num_weights, "limits");
    const auto* part = flat<int32_t>(assignment, ScalarType::Int, "assignment");
    check(assignment.size(0) == num_nodes, "assignment must have one element per node (",
          num_nodes, "), got ", assignment.size(0));
    load_.resize(num_parts * num_weights);
    size_.resize(num_parts);
    over_.resize(num_parts);
    scale_.resize(num_weights);
    for (int64_t v = 0; v < num_nodes; ++v) {
      check_index(part[v] >= 0 && part[v] < num_parts, "assignment must lie in [0, ", num_parts,
                  "), got ", part[v]);
      ++size_[part[v]];
      for (int64_t k = 0; k < num_weights; ++k) {
        check(weight(v)[k] >= 0, "node_weight must not be negative");
        load_[part[v] * num_weights + k] += weight(v)[k];
        scale_[k] += static_cast<double>(weight(v)[k]);
      }
    }
    for (double& scale : scale_) scale = scale > 0 ? static_cast<double>(num_parts) / scale : 0;
    for (int64_t p = 0; p < num_parts; ++p) over_[p] = overload(p, nullptr, 0);
  }

  int64_t num_parts, num_weights;

  const int64_t* weight(int64_t v) const { return weight_ + v * num_weights; }
  int64_t size(int64_t p) const { return size_[p]; }
  // Whether part p keeps within its limits with v in it as well.
  bool fits(int64_t v, int64_t p) const {
    const int64_t *w = weight(v), *load = &load_[p * num_weights], *most = limits_ + p * num_weights;
    for (int64_t k = 0; k < num_weights; ++k) {
      if (w[k] > 0 && load[k] + w[k] > most[k]) return false;
    }
    return true;
  }
  // Whether both parts keep within their limits when v goes from `from` to `to` and w comes back.
  bool fit_swapped(int64_t v, int64_t w, int64_t from, int64_t to) const {
    for (int64_t k = 0; k < num_weights; ++k) {
      const int64_t more = weight(v)[k] - weight(w)[k];  // of `to`
      const int64_t in_to = to * num_weights + k, in_from = from * num_weights + k;
      if (more > 0 && load_[in_to] + more > limits_[in_to]) return false;
      if (more < 0 && load_[in_from] - more > limits_[in_from]) return false;
    }
    return true;
  }
  // How far part p is above its limits, in fair shares of each weight.
  double over(int64_t p) const { return over_[p]; }
  // The same with `sign` times the weight of v added; null: as it is.
  double overload(int64_t p, const int64_t* w, int64_t sign) const {
    double sum = 0;
    for (int64_t k = 0; k < num_weights; ++k) {
      const int64_t i = p * num_weights + k;
      const int64_t above = load_[i] + (w == nullptr ? 0 : sign * w[k]) - limits_[i];
      if (above > 0) sum += static_cast<double>(above) * scale_[k];
    }
    return sum;
  }
  // By how much all parts together come nearer to their limits if v moves.
  double relief(int64_t v, int64_t from, int64_t to) const {
    return (over_[from] - overload(from, weight(v), -1)) +
           (over_[to] - overload(to, weight(v), 1));
  }
  // The same in squares of what parts have above nine tenths of their limits. It tells parts that are near
  // their limits from those that are not, and so finds ways where no single move helps at once.
  double leveling(int64_t v, int64_t from, int64_t to) const {
    return (square(from, nullptr, 0) - square(from, weight(v), -1)) +
           (square(to, nullptr, 0) - square(to, weight(v), 1));
  }
  void move(int64_t v, int64_t from, int64_t to) {
    const int64_t* w = weight(v);
    for (int64_t k = 0; k < num_weights; ++k) {
      load_[from * num_weights + k] -= w[k];
      load_[to * num_weights + k] += w[k];
    }
    --size_[from];
    ++size_[to];
    over_[from] = overload(from, nullptr, 0);
    over_[to] = overload(to, nullptr, 0);
  }
  // How far all parts together are above their limits.
  double total_over() const {
    double sum = 0;
    for (const double over : over_) sum += over;
    return sum;
  }
  bool hold() const {
    return std::all_of(over_.begin(), over_.end(), [](double x) { return x <= 0; });
  }

 private:
  static constexpr double kAmple = 0.9;

  double square(int64_t p, const int64_t* w, int64_t sign) const {
    double sum = 0;
    for (int64_t k = 0; k < num_weights; ++k) {
      const int64_t i = p * num_weights + k;
      const int64_t load = load_[i] + (w == nullptr ? 0 : sign * w[k]);
      const double most = static_cast<double>(std::max<int64_t>(1, limits_[i]));
      const double above = static_cast<double>(load) / most - kAmple;
      if (above > 0) sum += above * above;
    }
    return sum;
  }

  const int64_t *weight_, *limits_;
  std::vector<int64_t> load_, size_;
  std::vector<double> over_, scale_;
};

}  // namespace gnn_dist
