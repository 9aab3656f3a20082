// Chunks of a stream of edges, whose ends are int32 or int64.
#pragma once

#include <type_traits>

#include "tensors.h"

namespace gnn_dist {

constexpr int64_t kEdgesAhead = 16;  // between asking for an edge's nodes and looking at them

template <class T>
T* writable_flat(const Tensor& tensor, ScalarType dtype, const char* name) {
  return const_cast<T*>(flat<T>(tensor, dtype, name));
}

template <class Index>
bool all_nodes(const Index* ids, int64_t size, int64_t num_nodes) {
  const auto limit = static_cast<uint64_t>(num_nodes);
  bool inside = true;
  for (int64_t i = 0; i < size; ++i) {
    inside &= static_cast<std::make_unsigned_t<Index>>(ids[i]) < limit;
  }
  return inside;
}

template <class Index>
struct Edges {
  const Index* src;
  const Index* dst;
  int64_t size;
};

// Calls f(Edges) after a look at every end, so that nothing is changed if one is no node.
template <class F>
void with_edges(const Tensor& src, const Tensor& dst, int64_t num_nodes, const F& f) {
  const auto run = [&](auto value, ScalarType dtype) {
    using Index = decltype(value);
    const Edges<Index> edges{flat<Index>(src, dtype, "src"), flat<Index>(dst, dtype, "dst"),
                             src.size(0)};
    check(dst.size(0) == edges.size, "src and dst must be equally long, got ", edges.size, " and ",
          dst.size(0));
    check_index(all_nodes(edges.src, edges.size, num_nodes) &&
                    all_nodes(edges.dst, edges.size, num_nodes),
                "src and dst must lie in [0, ", num_nodes, ")");
    f(edges);
  };
  if (src.scalar_type() == ScalarType::Int) {
    run(int32_t{}, ScalarType::Int);
  } else {
    run(int64_t{}, ScalarType::Long);
  }
}

}  // namespace gnn_dist
