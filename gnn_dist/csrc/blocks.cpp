// Blocks of many batches of seeds: a thread takes a batch through all its hops.
#include <memory>

#include "picks.h"
#include "workers.h"

namespace gnn_dist {

namespace {

constexpr int64_t kRowsAhead = 16;      // nodes between asking for a row's offsets and using them
constexpr int64_t kRowsPerStage = 16;   // rows whose entries are in flight together

// What the sampling of a batch reads.
struct Source {
  CsrView csr;
  const int64_t* ids;  // original id of each node; null: its number
  WeightView weight;
  bool replace;

  int64_t num_nodes() const { return csr.num_rows; }
  void prefetch_row(int64_t node) const {
    __builtin_prefetch(csr.indptr + node);
    if (ids != nullptr) __builtin_prefetch(ids + node);
  }
};

// Where each node of the graph has its local number, while one batch is being built: an element
// whose upper half is the stamp of the batch has the number in its lower half. Nothing is cleared
// between batches.
class LocalNumbers {
 public:
  LocalNumbers(int64_t* map, int64_t stamp) : map_(map), stamp_(stamp) {}
  void prefetch(int64_t node) const { __builtin_prefetch(map_ + node, 1); }
  // Returns the node's number: the one it has, or else `next`.
  int32_t number(int64_t node, int64_t next) {
    const int64_t known = map_[node];
    const int64_t number = known >> 32 == stamp_ ? known & 0x7FFFFFFF : next;
    map_[node] = stamp_ << 32 | number;
    return static_cast<int32_t>(number);
  }

 private:
  int64_t* map_;
  int64_t stamp_;
};

// A thread's memory: grows, is not initialised.
template <class T>
class Scratch {
 public:
  T* data() { return data_.get(); }
  T& operator[](int64_t i) { return data_[i]; }
  void reserve(int64_t size, int64_t kept) {
    if (size <= capacity_) return;
    capacity_ = size + size / 2;
    std::unique_ptr<T[]> larger(new T[capacity_]);
    std::copy_n(data_.get(), kept, larger.get());
    data_ = std::move(larger);
  }

 private:
  std::unique_ptr<T[]> data_;
  int64_t capacity_ = 0;
};

struct Row {
  int64_t begin, degree;
  uint64_t key;
};

// One thread's batches, one after the other.
class BlockBuilder {
 public:
  BlockBuilder() = default;

  void start(const Source& source, LocalNumbers& numbers, const int64_t* seeds, int64_t size) {
    nodes_.reserve(size + 1, 0);
    num_nodes_ = 0;
    for (int64_t i = 0; i < size; ++i) {
      check_index(seeds[i] >= 0 && seeds[i] < source.num_nodes(), "seeds must lie in [0, ",
                  source.num_nodes(), "), got ", seeds[i]);
      check(numbers.number(seeds[i], i) == i, "a batch must not hold a seed twice, node ", seeds[i],
            " is repeated");
      nodes_[num_nodes_++] = seeds[i];
    }
  }

  // Samples for all nodes found so far, and appends indptr, indices and position of the block.
  void hop(const Source& source, LocalNumbers& numbers, int64_t fanout, uint64_t key,
           const Tensor& longs, const Tensor& ints, std::vector<Tensor>& out) {
    const PickRule rule{fanout, source.replace, source.weight};
    const int64_t num_dst = num_nodes_;
    const Tensor indptr = torch::stable::new_empty(longs, {num_dst + 1});
    auto* offsets = static_cast<int64_t*>(indptr.data_ptr());
    read_rows(source, rule, key, offsets);
    const int64_t nnz = offsets[num_dst];
    nodes_.reserve(num_dst + nnz + 1, num_dst);
    const Tensor indices = torch::stable::new_empty(ints, {nnz});
    const Tensor position = torch::stable::new_empty(longs, {nnz});
    auto* columns = static_cast<int32_t*>(indices.data_ptr());
    auto* entries = static_cast<int64_t*>(position.data_ptr());
    // Three stages, each one step behind the one before it, so that what it reads has arrived.
    for (int64_t row = 0; row < num_dst + 2 * kRowsPerStage; row += kRowsPerStage) {
      const auto edge = [&](int64_t r) {
        return offsets[std::clamp<int64_t>(r, 0, num_dst)];
      };
      pick(source, rule, offsets, row, std::min(row + kRowsPerStage, num_dst), entries);
      fetch(source, numbers, edge(row - kRowsPerStage), edge(row), entries, columns);
      number(numbers, edge(row - 2 * kRowsPerStage), edge(row - kRowsPerStage), columns);
    }
    out.insert(out.end(), {indptr, indices, position});
  }

  Tensor nodes(const Tensor& longs) {
    const Tensor out = torch::stable::new_empty(longs, {num_nodes_});
    std::copy_n(nodes_.data(), num_nodes_, static_cast<int64_t*>(out.data_ptr()));
    return out;
  }

 private:
  void read_rows(const Source& source, const PickRule& rule, uint64_t key, int64_t* offsets) {
    rows_.reserve(num_nodes_, 0);
    offsets[0] = 0;
    for (int64_t i = 0; i < num_nodes_; ++i) {
      if (i + kRowsAhead < num_nodes_) source.prefetch_row(nodes_[i + kRowsAhead]);
      const int64_t node = nodes_[i];
      const auto [begin, degree] = entries_of_row(source.csr, node);
      const int64_t id = source.ids != nullptr ? source.ids[node] : node;
      rows_[i] = {begin, degree, row_key(key, static_cast<uint64_t>(id))};
      offsets[i + 1] = offsets[i] + picker_.count(rule, begin, degree);
    }
  }

  void pick(const Source& source, const PickRule& rule, const int64_t* offsets, int64_t row,
            int64_t end, int64_t* entries) {
    for (; row < end; ++row) {
      const Row& from = rows_[row];
      picker_.pick(rule, from.key, from.begin, from.degree, offsets[row + 1] - offsets[row],
                   entries + offsets[row]);
      for (int64_t e = offsets[row]; e < offsets[row + 1]; ++e) {
        __builtin_prefetch(source.csr.indices + entries[e]);
      }
    }
  }

  static void fetch(const Source& source, const LocalNumbers& numbers, int64_t begin, int64_t end,
                    const int64_t* entries, int32_t* columns) {
    for (int64_t e = begin; e < end; ++e) {
      columns[e] = source.csr.indices[entries[e]];
      check_index(columns[e] >= 0 && columns[e] < source.num_nodes(), "indices must lie in [0, ",
                  source.num_nodes(), "), got ", columns[e]);
      numbers.prefetch(columns[e]);
    }
  }

  // Without a branch on whether a node is new: the place behind the last node is written anyway.
  void number(LocalNumbers& numbers, int64_t begin, int64_t end, int32_t* columns) {
    int64_t* nodes = nodes_.data();
    int64_t next = num_nodes_;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t node = columns[e];
      columns[e] = numbers.number(node, next);
      nodes[next] = node;
      next += columns[e] == next;
    }
    num_nodes_ = next;
  }

  Scratch<int64_t> nodes_;
  int64_t num_nodes_ = 0;
  Scratch<Row> rows_;
  Picker picker_;
};

// Batches of one call, checked.
struct Batches {
  const int64_t* seeds;
  const int64_t* seed_ptr;
  int64_t size;
  const int64_t* keys;  // (size, hops)

  Batches(const Tensor& seeds_tensor, const Tensor& ptr_tensor, const Tensor& keys_tensor,
          int64_t hops)
      : seeds(flat<int64_t>(seeds_tensor, ScalarType::Long, "seeds")),
        seed_ptr(flat<int64_t>(ptr_tensor, ScalarType::Long, "seed_ptr")),
        size(ptr_tensor.size(0) - 1),
        keys(static_cast<const int64_t*>(keys_tensor.data_ptr())) {
    check(size >= 0, "seed_ptr must have at least one element");
    check(seed_ptr[0] == 0 && seed_ptr[size] == seeds_tensor.size(0), "seed_ptr must run from 0 to ",
          seeds_tensor.size(0), ", got ", seed_ptr[0], " to ", seed_ptr[size]);
    for (int64_t i = 0; i < size; ++i) {
      check(seed_ptr[i] <= seed_ptr[i + 1], "seed_ptr must not fall, it does at ", i);
    }
    check_dtype(keys_tensor, ScalarType::Long, "keys");
    check(keys_tensor.dim() == 2 && keys_tensor.size(0) == size && keys_tensor.size(1) == hops &&
              keys_tensor.is_contiguous(),
          "keys must be contiguous of shape (", size, ", ", hops, ")");
  }
};

// Returns the number of workers.
int64_t check_maps(const Tensor& maps, int64_t num_nodes, int64_t num_batches,
                   int64_t first_stamp) {
  check_dtype(maps, ScalarType::Long, "maps");
  check(maps.dim() == 2 && maps.size(0) > 0 && maps.size(1) == num_nodes && maps.is_contiguous(),
        "maps must be contiguous of shape (threads, ", num_nodes, ")");
  check(first_stamp > 0 && first_stamp <= kMostRowEntries - num_batches,
        "stamps must lie in [1, 2^31), they begin at ", first_stamp);
  return std::min(num_workers(num_batches), maps.size(0));
}

Source make_source(const Tensor& indptr, const Tensor& indices, const OptionalTensor& ids,
                   const OptionalTensor& weight, bool replace) {
  const CsrView csr = csr_view(indptr, indices);
  check(csr.num_rows <= kMostRowEntries, "there must be fewer than 2^31 nodes, got ",
        csr.num_rows);
  const int64_t* original = nullptr;
  if (ids.has_value()) {
    original = flat<int64_t>(*ids, ScalarType::Long, "ids");
    check(ids->size(0) == csr.num_rows, "ids must have one element per node (", csr.num_rows,
          "), got ", ids->size(0));
  }
  return {csr, original, WeightView(weight, csr.nnz), replace};
}

}  // namespace

std::vector<Tensor> sample_blocks(Tensor maps, int64_t first_stamp, Tensor indptr, Tensor indices,
                                  Tensor seeds, Tensor seed_ptr, std::vector<int64_t> fanouts,
                                  Tensor keys, bool replace, OptionalTensor ids,
                                  OptionalTensor weight) {
  const Source source = make_source(indptr, indices, ids, weight, replace);
  const auto hops = static_cast<int64_t>(fanouts.size());
  const Batches batches(seeds, seed_ptr, keys, hops);
  for (const int64_t fanout : fanouts) PickRule{fanout, replace, {}}.check_fanout();
  const int64_t workers = check_maps(maps, source.num_nodes(), batches.size, first_stamp);
  std::vector<BlockBuilder> builders(workers);
  std::vector<std::vector<Tensor>> made(batches.size);
  auto* map = static_cast<int64_t*>(maps.data_ptr());
  for_each_task_of_workers(batches.size, workers, [&](int64_t worker, int64_t batch) {
    LocalNumbers numbers(map + worker * source.num_nodes(), first_stamp + batch);
    BlockBuilder& builder = builders[worker];
    const int64_t first = batches.seed_ptr[batch];
    builder.start(source, numbers, batches.seeds + first, batches.seed_ptr[batch + 1] - first);
    for (int64_t hop = 0; hop < hops; ++hop) {
      builder.hop(source, numbers, fanouts[hop],
                  static_cast<uint64_t>(batches.keys[batch * hops + hop]), indptr, indices,
                  made[batch]);
    }
    made[batch].push_back(builder.nodes(indptr));
  });
  std::vector<Tensor> out;
  out.reserve(batches.size * (3 * hops + 1));
  for (const auto& tensors : made) out.insert(out.end(), tensors.begin(), tensors.end());
  return out;
}

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "sample_blocks(Tensor(a!) maps, int first_stamp, Tensor indptr, Tensor indices, "
      "Tensor seeds, Tensor seed_ptr, int[] fanouts, Tensor keys, bool replace=False, "
      "Tensor? ids=None, Tensor? weight=None) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("sample_blocks", TORCH_BOX(&gnn_dist::sample_blocks));
}
