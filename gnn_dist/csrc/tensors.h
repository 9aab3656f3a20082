// Checks of operator arguments, and views of them without PyTorch's types.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuts.h"
#include "dtypes.h"

namespace gnn_dist {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Wrong shapes and dtypes: ValueError in Python.
template <class... Parts>
void check(bool holds, const Parts&... parts) {
  if (!holds) throw std::invalid_argument(text(parts...));
}

// Indices out of range: IndexError in Python.
template <class... Parts>
void check_index(bool holds, const Parts&... parts) {
  if (!holds) throw std::out_of_range(text(parts...));
}

inline void check_dtype(const Tensor& tensor, ScalarType dtype, const char* name) {
  check(tensor.scalar_type() == dtype, name, " must be ", torch::headeronly::toString(dtype),
        ", got ", torch::headeronly::toString(tensor.scalar_type()));
}

// A one-dimensional contiguous tensor's data.
template <class T>
const T* flat(const Tensor& tensor, ScalarType dtype, const char* name) {
  check_dtype(tensor, dtype, name);
  check(tensor.dim() == 1 && (tensor.size(0) < 2 || tensor.stride(0) == 1), name,
        " must be one-dimensional and contiguous");
  return static_cast<const T*>(tensor.data_ptr());
}

// Rows of equal length with unit stride inside a row; rows may lie apart.
struct RowsView {
  void* data;
  int64_t num_rows;
  int64_t width;
  int64_t stride;  // elements from one row to the next
  ScalarType dtype;

  template <class T>
  T* row(int64_t i) const {
    return static_cast<T*>(data) + i * stride;
  }
};

inline RowsView rows_view(const Tensor& tensor, const char* name) {
  check(tensor.dim() == 2, name, " must have two dimensions, got ", tensor.dim());
  // An empty tensor counts as contiguous whatever its strides.
  check(tensor.size(0) == 0 || tensor.size(1) < 2 || tensor.stride(1) == 1, name,
        " must have contiguous rows");
  return {tensor.data_ptr(), tensor.size(0), tensor.size(1), tensor.stride(0),
          tensor.scalar_type()};
}

// Rows to be written: they must not overlap.
inline RowsView writable_rows(const Tensor& tensor, const char* name) {
  const RowsView rows = rows_view(tensor, name);
  check(rows.num_rows < 2 || rows.width == 0 || rows.stride >= rows.width, name,
        " must have rows that do not overlap");
  return rows;
}

struct CsrView {
  const int64_t* indptr;
  const int32_t* indices;
  int64_t num_rows;
  int64_t nnz;
};

// The offsets' ends are checked here; each row's are checked where the row is read.
inline CsrView csr_view(const Tensor& indptr, const Tensor& indices) {
  const auto* offsets = flat<int64_t>(indptr, ScalarType::Long, "indptr");
  const auto* columns = flat<int32_t>(indices, ScalarType::Int, "indices");
  check(indptr.size(0) > 0, "indptr must have at least one element");
  const int64_t num_rows = indptr.size(0) - 1, nnz = indices.size(0);
  check_index(offsets[0] == 0 && offsets[num_rows] == nnz, "indptr must run from 0 to ", nnz,
              ", the number of indices, got ", offsets[0], " to ", offsets[num_rows]);
  return {offsets, columns, num_rows, nnz};
}

inline void throw_bad_structure(int64_t num_cols) {
  check_index(false, "indptr must not fall and indices must lie in [0, ", num_cols, ")");
}

// Calls f with a value of the storage type that stands for dtype.
template <class F>
auto with_float_dtype(ScalarType dtype, const char* name, F&& f) {
  switch (dtype) {
    case ScalarType::Float:
      return f(float{});
    case ScalarType::Double:
      return f(double{});
    case ScalarType::BFloat16:
      return f(bf16{});
    case ScalarType::Half:
      return f(f16{});
    default:
      throw std::invalid_argument(
          text(name, " must be float32, float64, bfloat16 or float16, got ",
               torch::headeronly::toString(dtype)));
  }
}

// The instance of a kernel that serves a storage type.
inline FloatType float_type(ScalarType dtype, const char* name) {
  return with_float_dtype(dtype, name, [](auto value) {
    using S = decltype(value);
    if constexpr (is_same<S, float>) return kFloat32;
    if constexpr (is_same<S, double>) return kFloat64;
    if constexpr (is_same<S, bf16>) return kBFloat16;
    return kFloat16;
  });
}

// The dtype that values of this one are added up in.
inline ScalarType accumulate_dtype(ScalarType dtype) {
  return dtype == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

}  // namespace gnn_dist
