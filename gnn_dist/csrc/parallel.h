// Work sharing over PyTorch's own threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>

namespace gnn_dist {

// Runs f(task) for task = 0 .. num_tasks-1, in that order of starting, on all of PyTorch's threads.
// f must not throw: it would cross a C interface.
template <class F>
void for_each_task(int64_t num_tasks, const F& f) {
  const int64_t threads =
      std::min<int64_t>(torch::stable::get_num_threads(), num_tasks);
  if (threads <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) f(task);
    return;
  }
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
        f(task);
      }
    }
  });
}

// Runs f(begin, end) over pieces of [0, size) of at least grain elements.
template <class F>
void for_each_range(int64_t size, int64_t grain, const F& f) {
  if (size > 0) torch::stable::parallel_for(0, size, grain, f);
}

}  // namespace gnn_dist
