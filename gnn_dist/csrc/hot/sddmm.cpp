// out[entry, h] = <rows[r, h], columns[c, h]>.
#include "../heads.h"

namespace GNN_DIST_ISA {

// Reads far = columns, own = rows; writes out, of the accumulation type, entry by entry.
template <class S, int W>
struct Sddmm {
  using A = accumulate_t<S>;
  const AttentionCall& call;
  const Heads<S, W> heads;
  const int64_t block_size = 0, slot_size = 0;
  A *const own, *const dots;

  Sddmm(const AttentionCall& c, Carver& carver)
      : call(c),
        heads(c),
        own(carver.take<A>(heads.size())),
        dots(carver.take<A>(Lanes<A>(c).size)) {}

  void clear() const {}
  GNN_DIST_NOINLINE void open(int64_t row) const {
    heads.pack_factor(static_cast<const S*>(call.own.data) + row * call.own.stride, own);
  }
  GNN_DIST_INLINE void take(const Batch& batch) const {
    heads.dots(FarRows<S>(call, call.far, batch), own, batch.count, dots);
    A* out = static_cast<A*>(call.out.data) + (batch.next - batch.count) * heads.heads;
    for (int e = 0; e < batch.count; ++e) {
      for (int64_t h = 0; h < heads.heads; ++h) *out++ = dots[e * heads.lanes + h];
    }
  }
  void merge(const A*) const {}
  void finish(int64_t, A*) const {}
  void collect(const A*, A*, A*) const {}
};

template <class S>
constexpr gnn_dist::SddmmOfType of_type = {
    {RunPass<Sddmm<S, fitting_width<S, 1>>>::table, RunPass<Sddmm<S, fitting_width<S, 2>>>::table,
     RunPass<Sddmm<S, fitting_width<S, 4>>>::table, RunPass<Sddmm<S, fitting_width<S, 8>>>::table,
     RunPass<Sddmm<S, fitting_width<S, 16>>>::table}};

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(SddmmKernels, sddmm_loops) = {
    {of_type<float>, of_type<double>, of_type<bf16>, of_type<f16>}};
}  // namespace gnn_dist
