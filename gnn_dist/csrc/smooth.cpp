// Local search on a smoothed connectivity, in one walk along the rows of a structure.
//
// Source: "Social Hash Partitioner: A Scalable Distributed Hypergraph Partitioner" (Kabiljo et al.,
// arXiv 1707.06665), sections 3.1 to 3.3.
#include "smooth.h"

#include <memory>
#include <new>
#include <tuple>

#include "hypergraph.h"
#include "workers.h"

namespace gnn_dist {

namespace {

constexpr int64_t kRowsPerTask = 256;
constexpr int64_t kAhead = 16;
constexpr uint8_t kMany = 255;

struct Proposal {
  float gain;
  int32_t node, from, to;

  bool operator<(const Proposal& other) const {
    return gain != other.gain ? gain > other.gain : node < other.node;
  }
};

class SmoothPass {
 public:
  SmoothPass(const Rows& rows, Loads& loads, int32_t* part)
      : rows_(rows), loads_(loads), part_(part), count_(rows.num_rows * loads.num_parts) {
    for (int64_t v = 0; v < rows.num_rows; ++v) change(v, part[v], 1);
  }

  int64_t connectivity() const {
    return static_cast<int64_t>(count_.size()) -
           std::count(count_.begin(), count_.end(), uint8_t{0});
  }
  void run(const float* table, int64_t batch) {
    const int64_t num_nodes = rows_.num_rows;
    to_.resize(batch);
    gain_.resize(batch);
    for (int64_t begin = 0; begin < num_nodes; begin += batch) {
      const int64_t end = std::min(begin + batch, num_nodes);
      propose(table, begin, end);
      apply(begin, end);
    }
  }

 private:
  // Adds v to the counts of part p (sign 1), or takes it out (-1). Counts that are full stay so.
  void change(int64_t v, int32_t p, int sign) {
    const int64_t num_parts = loads_.num_parts;
    const auto add = [&](int64_t net) {
      uint8_t& count = count_[net * num_parts + p];
      if (count != kMany) count = static_cast<uint8_t>(count + sign);
    };
    add(v);
    const int64_t end = rows_.ptr[v + 1];
    int64_t before = -1;
    for (int64_t e = rows_.ptr[v]; e < end; ++e) {
      if (e + kAhead < rows_.nnz) {
        __builtin_prefetch(&count_[rows_.ids[e + kAhead] * num_parts + p], 1);
      }
      const int32_t net = rows_.ids[e];
      if (net != before && net != v) add(net);
      before = net;
    }
  }
  void propose(const float* table, int64_t begin, int64_t end) {
    const SmoothLoops& loops = GNN_DIST_KERNELS(smooth);
    const SmoothCall call{rows_.ptr, rows_.ids, rows_.nnz,        count_.data(),
                          part_,     loads_.num_parts, table};
    const int64_t tasks = (end - begin + kRowsPerTask - 1) / kRowsPerTask;
    const int64_t workers = num_workers(tasks);
    std::vector<float> cost(workers * loads_.num_parts);
    for_each_task_of_workers(tasks, workers, [&](int64_t worker, int64_t task) {
      const int64_t first = task * kRowsPerTask;
      loops.propose(call, begin + first, std::min(begin + first + kRowsPerTask, end),
                    cost.data() + worker * loads_.num_parts, to_.data() + first,
                    gain_.data() + first);
    });
  }
  // The best first. What does not fit waits for a node that wants to go the other way.
  void apply(int64_t begin, int64_t end) {
    proposals_.clear();
    for (int64_t v = begin; v < end; ++v) {
      const float gain = gain_[v - begin];
      if (gain > 0) proposals_.push_back({gain, static_cast<int32_t>(v), part_[v], to_[v - begin]});
    }
    std::sort(proposals_.begin(), proposals_.end());
    waiting_.clear();
    for (const Proposal& now : proposals_) {
      if (loads_.size(now.from) > 1 && loads_.fits(now.node, now.to)) {
        move(now.node, now.to);
      } else if (!swap(now)) {
        waiting_.push_back(now);
      }
    }
  }
  // Looks at the last few that wait, so that a batch never takes time in the square of its size.
  bool swap(const Proposal& now) {
    const auto size = static_cast<int64_t>(waiting_.size());
    for (int64_t i = size - 1; i >= std::max<int64_t>(0, size - kLooked); --i) {
      const Proposal other = waiting_[i];
      if (other.from != now.to || other.to != now.from) continue;
      if (!loads_.fit_swapped(now.node, other.node, now.from, now.to)) continue;
      move(now.node, now.to);
      move(other.node, other.to);
      waiting_.erase(waiting_.begin() + i);
      return true;
    }
    return false;
  }
  void move(int32_t v, int32_t to) {
    change(v, part_[v], -1);
    loads_.move(v, part_[v], to);
    part_[v] = to;
    change(v, to, 1);
  }

  static constexpr int64_t kLooked = 256;

  const Rows& rows_;
  Loads& loads_;
  int32_t* part_;
  std::vector<uint8_t> count_;
  std::vector<int32_t> to_;
  std::vector<float> gain_;
  std::vector<Proposal> proposals_, waiting_;
};

}  // namespace

std::tuple<Tensor, int64_t> smooth_pass(Tensor indptr, Tensor indices, Tensor node_weight,
                                        Tensor limits, Tensor assignment, Tensor table,
                                        int64_t batch) {
  check(indptr.dim() == 1 && indptr.size(0) > 0, "indptr must have at least one element");
  const int64_t num_nodes = indptr.size(0) - 1;
  check(num_nodes <= INT32_MAX, "nodes must number less than 2^31");
  const Rows rows(indptr, indices, num_nodes);
  const auto* costs = flat<float>(table, ScalarType::Float, "table");
  check(table.size(0) == 256 || table.size(0) == 0, "table must have 256 elements, or none");
  check(batch > 0, "batch must be positive, got ", batch);
  Loads loads(node_weight, limits, assignment, num_nodes);
  const Tensor out = torch::stable::clone(assignment);
  SmoothPass pass(rows, loads, static_cast<int32_t*>(out.data_ptr()));
  const int64_t connectivity = pass.connectivity();
  if (table.size(0) > 0) pass.run(costs, std::min(batch, std::max<int64_t>(1, num_nodes)));
  return {out, connectivity};
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "smooth_pass(Tensor indptr, Tensor indices, Tensor node_weight, Tensor limits, "
      "Tensor assignment, Tensor table, int batch) -> (Tensor, int)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("smooth_pass", TORCH_BOX(&gnn_dist::smooth_pass));
}
