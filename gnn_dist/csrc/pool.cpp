// Fresh pages are dear: the kernel clears each and maps it, which for a large matrix takes longer
// than filling it. malloc returns large blocks to the system at once; this pool keeps them.
#include "pool.h"

#include <sys/mman.h>

#include <mutex>

namespace gnn_dist {

namespace {

constexpr int64_t kSmallest = int64_t{1} << 20;  // what malloc itself keeps
constexpr int64_t kHugePage = int64_t{2} << 20;

struct Block {
  void* data;
  int64_t num_bytes;
};

// Holds at most a quarter more than what was in use at one time.
class Pool {
 public:
  Block take(int64_t num_bytes) {
    num_bytes = (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
    const std::lock_guard<std::mutex> lock(mutex_);
    Block block = best_fit(num_bytes);
    used_ += block.data != nullptr ? block.num_bytes : num_bytes;
    peak_ = std::max(peak_, used_);
    if (block.data == nullptr) {
      drop_free_above(peak_ + peak_ / 4 - used_);
      block = map(num_bytes);
    }
    return block;
  }

  void give_back(Block block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ -= block.num_bytes;
    free_bytes_ += block.num_bytes;
    free_.push_back(block);
  }

  // Returns all free blocks to the system, and forgets how much was ever in use.
  int64_t release() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t before = free_bytes_;
    drop_free_above(0);
    peak_ = used_;
    return before;
  }

 private:
  std::mutex mutex_;
  std::vector<Block> free_;  // the one longest unused first
  int64_t free_bytes_ = 0, used_ = 0, peak_ = 0;

  Block best_fit(int64_t num_bytes) {
    int64_t best = -1;
    for (int64_t i = 0; i < static_cast<int64_t>(free_.size()); ++i) {
      const int64_t have = free_[i].num_bytes;
      if (have < num_bytes || have > num_bytes + num_bytes / 4) continue;
      // Of equal ones the last: it was used most recently.
      if (best < 0 || have <= free_[best].num_bytes) best = i;
    }
    if (best < 0) return {nullptr, 0};
    const Block block = free_[best];
    free_.erase(free_.begin() + best);
    free_bytes_ -= block.num_bytes;
    return block;
  }

  void drop_free_above(int64_t most) {
    size_t dropped = 0;
    while (free_bytes_ > most) {
      munmap(free_[dropped].data, static_cast<size_t>(free_[dropped].num_bytes));
      free_bytes_ -= free_[dropped++].num_bytes;
    }
    free_.erase(free_.begin(), free_.begin() + static_cast<int64_t>(dropped));
  }

  Block map(int64_t num_bytes) {
    // More than asked for, so that the block can begin at a huge page.
    const auto size = static_cast<size_t>(num_bytes + kHugePage);
    void* raw = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
      used_ -= num_bytes;
      throw std::runtime_error(text("cannot get ", num_bytes, " bytes of memory"));
    }
    const auto begin = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t data = (begin + kHugePage - 1) / kHugePage * kHugePage;
    if (data > begin) munmap(raw, data - begin);
    const uintptr_t end = begin + size, used_end = data + static_cast<uintptr_t>(num_bytes);
    if (end > used_end) munmap(reinterpret_cast<void*>(used_end), end - used_end);
#if defined(MADV_HUGEPAGE)
    // One page fault for 2 MiB instead of 512, and fewer address translations for random rows.
    madvise(reinterpret_cast<void*>(data), static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
#endif
    return {reinterpret_cast<void*>(data), num_bytes};
  }
};

// Never destroyed: tensors may outlive every other static object.
Pool& pool() {
  static Pool* const only = new Pool;
  return *only;
}

int64_t element_bytes(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
      return 1;
    case ScalarType::Short:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return 2;
    case ScalarType::Int:
    case ScalarType::Float:
      return 4;
    case ScalarType::ComplexDouble:
      return 16;
    default:
      return 8;
  }
}

}  // namespace

Tensor new_rows(const Tensor& like, int64_t num_rows, int64_t width, ScalarType dtype) {
  check(num_rows >= 0 && width >= 0, "sizes must not be negative, got (", num_rows, ", ", width,
        ")");
  const int64_t num_bytes = num_rows * width * element_bytes(dtype);
  if (num_bytes < kSmallest) return torch::stable::new_empty(like, {num_rows, width}, dtype);
  const Block block = pool().take(num_bytes);
  return torch::stable::from_blob(block.data, {num_rows, width}, {width, 1}, like.device(), dtype,
                                  [block](void*) { pool().give_back(block); });
}

Tensor empty_rows(Tensor like, int64_t num_rows, int64_t width) {
  return new_rows(like, num_rows, width);
}

int64_t release_pool() { return pool().release(); }

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def("empty_rows(Tensor like, int num_rows, int width) -> Tensor");
  m.def("release_pool() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("empty_rows", TORCH_BOX(&gnn_dist::empty_rows));
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CompositeExplicitAutograd, m) {
  m.impl("release_pool", TORCH_BOX(&gnn_dist::release_pool));
}
