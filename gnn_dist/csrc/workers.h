// Work sharing for tasks that keep something per thread, and may throw.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <vector>

#include "parallel.h"

namespace gnn_dist {

inline int64_t num_workers(int64_t num_tasks) {
  return std::max<int64_t>(
      1, std::min<int64_t>(torch::stable::get_num_threads(), num_tasks));
}

// Runs f(worker, task) for task = 0 .. num_tasks-1, in that order of starting; at any time a worker
// has one task. All tasks run; then the exception of the first one that threw is thrown again.
template <class F>
void for_each_task_of_workers(int64_t num_tasks, int64_t workers, const F& f) {
  std::vector<std::exception_ptr> failures(num_tasks);
  std::atomic<int64_t> next{0};
  for_each_task(workers, [&](int64_t worker) {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
      try {
        f(worker, task);
      } catch (...) {
        failures[task] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace gnn_dist
