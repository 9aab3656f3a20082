// Attention operators: argument checks, and the sharing of rows among threads.
#include "attention.h"

#include <atomic>
#include <memory>
#include <new>

#include "parallel.h"
#include "schedule.h"

namespace gnn_dist {

namespace {

constexpr int64_t kAlignment = 64;

// Memory of whole cache lines, or nothing where there is none left.
class Scratch {
 public:
  explicit Scratch(int64_t num_bytes)
      : memory_(new (std::nothrow) char[static_cast<size_t>(num_bytes + kAlignment)]) {}
  void* data() const {
    if (memory_ == nullptr) return nullptr;
    const auto at = reinterpret_cast<uintptr_t>(memory_.get());
    return reinterpret_cast<void*>((at + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  std::unique_ptr<char[]> memory_;
};

// Runs one pass, and puts sums over all rows into first and second, where it has any.
void run(const AttentionPass& pass, const AttentionCall& call, const RowCuts& cuts,
         void* first = nullptr, void* second = nullptr) {
  const int64_t scratch_bytes = pass.scratch_bytes(call), block_bytes = pass.block_bytes(call);
  const int64_t slot_bytes = pass.slot_bytes(call);
  const int64_t num_pieces = cuts.num_pieces();
  const int64_t num_slots = cuts.num_ranges() + cuts.num_hubs();
  const std::unique_ptr<char[]> blocks(new char[num_pieces * block_bytes + 1]);
  const std::unique_ptr<char[]> slots(new char[(num_slots + 1) * slot_bytes + 1]());
  std::atomic<bool> valid{true}, has_memory{true};
  const auto with_scratch = [&](const auto& work) {
    const Scratch scratch(scratch_bytes);
    if (scratch.data() == nullptr) {
      has_memory.store(false, std::memory_order_relaxed);
    } else if (!work(scratch.data())) {
      valid.store(false, std::memory_order_relaxed);
    }
  };
  // Pieces first: they are the longest tasks.
  for_each_task(num_pieces + cuts.num_ranges(), [&](int64_t task) {
    with_scratch([&](void* scratch) {
      if (task < num_pieces) {
        const RowPiece& piece = cuts.pieces[task];
        return pass.piece(call, piece.row, piece.begin, piece.end, scratch,
                          blocks.get() + task * block_bytes);
      }
      const int64_t range = task - num_pieces;
      return pass.rows(call, cuts.row_ptr[range], cuts.row_ptr[range + 1], scratch,
                       slots.get() + range * slot_bytes);
    });
  });
  for_each_task(cuts.num_hubs(), [&](int64_t hub) {
    with_scratch([&](void* scratch) {
      const int64_t piece = cuts.hub_ptr[hub];
      pass.finish(call, cuts.pieces[piece].row, scratch, blocks.get() + piece * block_bytes,
                  cuts.hub_ptr[hub + 1] - piece, slots.get() + (cuts.num_ranges() + hub) * slot_bytes);
      return true;
    });
  });
  if (!has_memory) throw std::bad_alloc();
  if (!valid) throw_bad_structure(call.num_cols);
  // One more slot than there are tasks: without rows, sums are zero.
  pass.collect(call, slots.get(), num_slots + 1, first, second);
}

int64_t padded_heads(int64_t heads) {
  if (heads > 16) return (heads + 15) / 16 * 16;
  int64_t lanes = 1;
  while (lanes < heads) lanes *= 2;
  return lanes;
}

int width_index(int64_t width) {
  int index = 0;
  while (index + 1 < kNumWidths && (int64_t{2} << index) <= width) ++index;
  return index;
}

// What all operators share: the structure, the form of the rows, and the dropout of coefficients.
struct Setting {
  CsrView csr;
  ScalarType dtype;
  FloatType type;
  int64_t heads, width;
  std::unique_ptr<char[]> zeros;

  Setting(const Tensor& indptr, const Tensor& indices, const Tensor& attention_like, int64_t h,
          const char* name)
      : csr(csr_view(indptr, indices)),
        dtype(attention_like.scalar_type()),
        type(float_type(dtype, name)),
        heads(h) {
    check(attention_like.dim() == 2, name, " must have two dimensions, got ", attention_like.dim());
    const int64_t columns = attention_like.size(1);
    check(heads > 0 && columns % heads == 0, "the heads must divide the columns of ", name, ", ",
          columns, ", got ", heads);
    width = columns / heads;
    zeros.reset(new char[static_cast<size_t>(8 * (columns + padded_heads(heads)))]());
  }
  AttentionCall call(const CsrView& walked, int64_t num_cols, double slope, double scale) const {
    AttentionCall out{};
    out.indptr = walked.indptr;
    out.indices = walked.indices;
    out.nnz = walked.nnz;
    out.num_cols = num_cols;
    out.heads = heads;
    out.lanes = padded_heads(heads);
    out.width = width;
    out.zeros = zeros.get();
    out.slope = slope;
    out.scale = scale;
    return out;
  }
  Matrix rows(const Tensor& tensor, int64_t num_rows, const char* name) const {
    const RowsView view = rows_view(tensor, name);
    check(view.dtype == dtype, name, " must be ", torch::headeronly::toString(dtype), ", got ",
          torch::headeronly::toString(view.dtype));
    check(view.num_rows == num_rows && view.width == heads * width, name, " must be of shape (",
          num_rows, ", ", heads * width, "), got (", view.num_rows, ", ", view.width, ")");
    return {view.data, view.stride};
  }
  // A contiguous tensor of the accumulation dtype.
  void* numbers(const Tensor& tensor, std::vector<int64_t> shape, const char* name) const {
    check_dtype(tensor, accumulate_dtype(dtype), name);
    bool fits = tensor.is_contiguous() && tensor.dim() == static_cast<int64_t>(shape.size());
    for (size_t i = 0; fits && i < shape.size(); ++i) fits = tensor.size(i) == shape[i];
    std::string wanted;
    for (const int64_t size : shape) wanted += (wanted.empty() ? "" : ", ") + std::to_string(size);
    check(fits, name, " must be contiguous of shape (", wanted, ")");
    return tensor.data_ptr();
  }
  Tensor new_numbers(const Tensor& like, int64_t rows, int64_t columns) const {
    const Tensor out =
        torch::stable::new_empty(like, {rows, columns}, accumulate_dtype(dtype));
    advise_huge_pages(out.data_ptr(),
                      rows * columns * static_cast<int64_t>(out.element_size()));
    return out;
  }
  bool is_empty() const { return heads * width == 0; }
};

// What the schemas call drop_key, drop_below, keep_scale, src_id and dst_id.
struct Drops {
  int64_t key, below;
  double scale;
  const OptionalTensor &src_id, &dst_id;

  EdgeDrops edges(const Setting& setting, int64_t num_src, bool own_is_dst) const {
    EdgeDrops out;
    out.on = below > 0;
    if (!out.on) return out;
    constexpr int64_t kAll = int64_t{1} << 32;
    check(below <= kAll, "drop_below must be at most 2^32, got ", below);
    check(src_id.has_value() && dst_id.has_value(), "dropout needs src_id and dst_id");
    const auto* src = flat<int64_t>(*src_id, ScalarType::Long, "src_id");
    const auto* dst = flat<int64_t>(*dst_id, ScalarType::Long, "dst_id");
    check(src_id->size(0) == num_src && dst_id->size(0) == setting.csr.num_rows,
          "src_id and dst_id must have ", num_src, " and ", setting.csr.num_rows,
          " elements, got ", src_id->size(0), " and ", dst_id->size(0));
    out.key = static_cast<uint64_t>(key);
    out.threshold = static_cast<uint32_t>(std::min(below, kAll - 1));
    out.scale = below == kAll ? 0.0 : scale;
    out.own_id = own_is_dst ? dst : src;
    out.far_id = own_is_dst ? src : dst;
    out.own_is_dst = own_is_dst;
    return out;
  }
};

void check_transposed(const CsrView& csr, const CsrView& transposed, int64_t num_src) {
  check(transposed.num_rows == num_src && transposed.nnz == csr.nnz,
        "the transposed structure must have ", num_src, " rows and ", csr.nnz, " entries, got ",
        transposed.num_rows, " and ", transposed.nnz);
}

const AttentionPass& pass_of(const AttentionKernels& kernels, const Setting& setting,
                             PassKind kind) {
  return kernels.passes[setting.type][width_index(setting.width)][kind];
}

constexpr int64_t kGatFields = 4, kFields = 3;

std::tuple<Tensor, Tensor, Tensor> gat(Tensor indptr, Tensor indices, Tensor x, Tensor att_src,
                                       Tensor att_dst, double slope, int64_t drop_key,
                                       int64_t drop_below, double keep_scale,
                                       OptionalTensor src_id, OptionalTensor dst_id) {
  check(att_src.dim() == 2, "att_src must have two dimensions, got ", att_src.dim());
  const Setting setting(indptr, indices, x, att_src.size(0), "x");
  const int64_t num_src = x.size(0), num_dst = setting.csr.num_rows;
  check(num_dst <= num_src, "x must have at least ", num_dst, " rows, got ", num_src);
  AttentionCall call = setting.call(setting.csr, num_src, slope, 1.0);
  const Tensor out = new_rows(x, num_dst, x.size(1));
  const Tensor score = setting.new_numbers(x, num_src, call.lanes);
  const Tensor state = setting.new_numbers(x, num_dst, kGatFields * call.lanes);
  call.far = call.own = setting.rows(x, num_src, "x");
  call.out = setting.rows(out, num_dst, "out");
  call.attention = setting.numbers(att_src, {setting.heads, setting.width}, "att_src");
  call.attention_second = setting.numbers(att_dst, {setting.heads, setting.width}, "att_dst");
  call.far_score = score.data_ptr();
  call.state = state.data_ptr();
  call.fields = kGatFields;
  call.num_dst = num_dst;
  call.drops = Drops{drop_key, drop_below, keep_scale, src_id, dst_id}.edges(setting, num_src, true);
  if (setting.is_empty()) return {out, torch::stable::fill_(score, 0.0), torch::stable::fill_(state, 0.0)};
  const auto scores = 
      GNN_DIST_KERNELS(gat_scores).types[setting.type].scores[width_index(setting.width)];
  for_each_range(num_src, 512, [&](int64_t begin, int64_t end) {
    scores(call, begin, end, score.data_ptr(), state.data_ptr());
  });
  run(pass_of(GNN_DIST_KERNELS(gat), setting, kForward), call, RowCuts(setting.csr));
  return {out, score, state};
}

std::tuple<Tensor, Tensor, Tensor> gat_grad(Tensor indptr, Tensor indices, Tensor t_indptr,
                                            Tensor t_indices, Tensor x, Tensor att_src,
                                            Tensor att_dst, Tensor score, Tensor state, Tensor grad,
                                            double slope, int64_t drop_key, int64_t drop_below,
                                            double keep_scale, OptionalTensor src_id,
                                            OptionalTensor dst_id) {
  check(att_src.dim() == 2, "att_src must have two dimensions, got ", att_src.dim());
  const Setting setting(indptr, indices, x, att_src.size(0), "x");
  const CsrView transposed = csr_view(t_indptr, t_indices);
  const int64_t num_src = x.size(0), num_dst = setting.csr.num_rows;
  check_transposed(setting.csr, transposed, num_src);
  check(num_dst <= num_src, "x must have at least ", num_dst, " rows, got ", num_src);
  const Drops drops{drop_key, drop_below, keep_scale, src_id, dst_id};
  AttentionCall by_rows = setting.call(setting.csr, num_src, slope, 1.0);
  AttentionCall by_columns = setting.call(transposed, num_dst, slope, 1.0);
  const Tensor grad_x = new_rows(x, num_src, x.size(1));
  const Tensor grad_src = torch::stable::new_zeros(att_src, {setting.heads, setting.width});
  const Tensor grad_dst = torch::stable::new_zeros(att_src, {setting.heads, setting.width});
  if (setting.is_empty()) return {grad_x, grad_src, grad_dst};
  // The inner products are added to what the forward has kept.
  const Tensor whole = torch::stable::clone(state);
  const Tensor dst_grad = setting.new_numbers(x, num_dst, by_rows.lanes);
  by_rows.far = by_columns.own = setting.rows(x, num_src, "x");
  by_rows.grad = by_columns.far = setting.rows(grad, num_dst, "grad");
  by_rows.far_score = by_columns.own_score =
      setting.numbers(score, {num_src, by_rows.lanes}, "score");
  by_rows.state = setting.numbers(whole, {num_dst, kGatFields * by_rows.lanes}, "state");
  by_columns.far_state = by_rows.state;
  by_rows.fields = by_columns.fields = kGatFields;
  by_rows.own_grad = by_columns.own_grad = dst_grad.data_ptr();
  by_columns.num_dst = num_dst;
  by_columns.attention = setting.numbers(att_src, {setting.heads, setting.width}, "att_src");
  by_columns.attention_second = setting.numbers(att_dst, {setting.heads, setting.width}, "att_dst");
  by_columns.out = setting.rows(grad_x, num_src, "grad_x");
  by_rows.drops = drops.edges(setting, num_src, true);
  by_columns.drops = drops.edges(setting, num_src, false);
  const AttentionKernels& kernels = GNN_DIST_KERNELS(gat);
  run(pass_of(kernels, setting, kBackwardRows), by_rows, RowCuts(setting.csr));
  run(pass_of(kernels, setting, kBackwardColumns), by_columns, RowCuts(transposed),
      grad_src.data_ptr(), grad_dst.data_ptr());
  return {grad_x, grad_src, grad_dst};
}

}  // namespace

}  // namespace gnn_dist

STABLE_TORCH_LIBRARY_FRAGMENT(gnn_dist, m) {
  m.def(
      "gat(Tensor indptr, Tensor indices, Tensor x, Tensor att_src, Tensor att_dst, float slope, "
      "int drop_key=0, int drop_below=0, float keep_scale=1.0, Tensor? src_id=None, "
      "Tensor? dst_id=None) -> (Tensor, Tensor, Tensor)");
  m.def(
      "gat_grad(Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor x, "
      "Tensor att_src, Tensor att_dst, Tensor score, Tensor state, Tensor grad, float slope, "
      "int drop_key=0, int drop_below=0, float keep_scale=1.0, Tensor? src_id=None, "
      "Tensor? dst_id=None) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gnn_dist, CPU, m) {
  m.impl("gat", TORCH_BOX(&gnn_dist::gat));
  m.impl("gat_grad", TORCH_BOX(&gnn_dist::gat_grad));
}
