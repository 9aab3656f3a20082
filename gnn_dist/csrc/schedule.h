// Work cut into tasks that do not depend on the number of threads.
#pragma once

#include <algorithm>

#include "cuts.h"
#include "tensors.h"

namespace gnn_dist {

// Rows in ranges of about equal work; rows of more than kHubEntries are in pieces instead.
struct RowCuts {
  std::vector<int64_t> row_ptr{0};  // range i holds the rows [row_ptr[i], row_ptr[i + 1])
  std::vector<RowPiece> pieces;
  std::vector<int64_t> hub_ptr{0};  // hub i has the pieces [hub_ptr[i], hub_ptr[i + 1])

  explicit RowCuts(const CsrView& csr) {
    // Never more than some thousand ranges: each may hold sums of its own.
    const int64_t most = std::max<int64_t>(4096, (csr.nnz + csr.num_rows) / 2048);
    int64_t work = 0;
    for (int64_t row = 0; row < csr.num_rows; ++row) {
      const int64_t begin = csr.indptr[row], end = csr.indptr[row + 1];
      check_index(begin >= 0 && begin <= end && end <= csr.nnz,
                  "indptr must not fall, it does at row ", row);
      if (end - begin > kHubEntries) {
        for (int64_t at = begin; at < end; at += kHubEntries) {
          pieces.push_back({row, at, std::min(at + kHubEntries, end)});
        }
        hub_ptr.push_back(num_pieces());
        work += 1;
      } else {
        work += end - begin + 1;
      }
      if (work >= most) {
        row_ptr.push_back(row + 1);
        work = 0;
      }
    }
    if (row_ptr.back() != csr.num_rows) row_ptr.push_back(csr.num_rows);
  }
  int64_t num_ranges() const { return static_cast<int64_t>(row_ptr.size()) - 1; }
  int64_t num_pieces() const { return static_cast<int64_t>(pieces.size()); }
  int64_t num_hubs() const { return static_cast<int64_t>(hub_ptr.size()) - 1; }
};

}  // namespace gnn_dist
