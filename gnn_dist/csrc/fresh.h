// New tensors. The first touch of fresh memory can cost more than the work that fills it.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace gnn_dist {

// Asks for huge pages under a large tensor nobody has touched yet: one fault then makes 2 MiB
// instead of 4 KiB. A wish, which the system may ignore.
inline void wish_for_huge_pages(const torch::stable::Tensor& tensor) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 4096, kWorthIt = uintptr_t{8} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(tensor.data_ptr()) + kPage - 1) & ~(kPage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(tensor.data_ptr()) +
                    static_cast<uintptr_t>(tensor.numel()) * tensor.element_size()) &
                   ~(kPage - 1);
  if (end > begin && end - begin >= kWorthIt) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
#else
  (void)tensor;
#endif
}

// An uninitialised contiguous (num_rows, width) tensor on the device of `like`.
inline torch::stable::Tensor new_rows(const torch::stable::Tensor& like, int64_t num_rows,
                                      int64_t width, torch::headeronly::ScalarType dtype) {
  const auto out = torch::stable::new_empty(like, {num_rows, width}, dtype);
  wish_for_huge_pages(out);
  return out;
}

}  // namespace gnn_dist
