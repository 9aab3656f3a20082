// Stochastic quantisation of rows. Every operation is rounded as in the reference: bits are equal.
#include "../quantize.h"

#include "../columns.h"
#include "../simd.h"
#include "../simd_draws.h"

namespace GNN_DIST_ISA {

using gnn_dist::QuantizeCall;

constexpr int64_t kChunk = 512;  // columns between which and their packed form levels are kept

template <class S, int W>
GNN_DIST_INLINE vec<float, W> load_float(const S* from) {
  return convert<float, accumulate_t<S>, W>(load<S, W>(from));
}

template <int W>
GNN_DIST_INLINE float horizontal_min(vec<float, W> value) {
  if constexpr (W == 1) {
    return value;
  } else {
    using Half = vec<float, W / 2>;
    Half parts[2];
    __builtin_memcpy(parts, &value, sizeof value);
    return horizontal_min<W / 2>(parts[0] < parts[1] ? parts[0] : parts[1]);
  }
}

// Smallest values of x and of -x, and a NaN if any value is not finite.
template <class S>
struct Extremes {
  const S* x;
  float& low;
  float& minus_high;
  float& poison;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    take<W>(load_float<S, W>(x + column));
  }
  template <int W>
  GNN_DIST_INLINE void take(vec<float, W> value) {
    const float least = horizontal_min<W>(value), minus_most = horizontal_min<W>(-value);
    low = least < low ? least : low;
    minus_high = minus_most < minus_high ? minus_most : minus_high;
    poison += horizontal_sum<float, W>(value - value);
  }
};

template <class S>
GNN_DIST_INLINE void extremes(const S* x, int64_t width, float& low, float& high, bool& finite) {
  constexpr int W = full_width<accumulate_t<S>>;
  low = __builtin_inff();
  float minus_high = __builtin_inff(), poison = 0;
  const int64_t whole = width / W * W;
  Extremes<S> step{x + whole, low, minus_high, poison};
  if (whole > 0) {
    auto least = load_float<S, W>(x), most = least, bad = least - least;
    for (int64_t column = W; column < whole; column += W) {
      const auto value = load_float<S, W>(x + column);
      least = value < least ? value : least;
      most = value > most ? value : most;
      bad += value - value;
    }
    step.template take<W>(least);
    step.template take<W>(most);
    poison += horizontal_sum<float, W>(bad);
  }
  cover_columns<W>(width - whole, step);
  high = -minus_high;
  finite = poison == 0;
}

// Levels low + k * step, k = 0 ... most. The two are bfloat16 numbers, and the levels cover the
// row: so it is right on average whatever was lost in rounding them.
struct Grid {
  float low, step;
  bool usable;
};

GNN_DIST_INLINE float from_bits(uint32_t bits) { return bit_cast<float>(bits); }

// The nearest bfloat16 above a positive number, and below any.
GNN_DIST_INLINE float rounded_up(float value) {
  return from_bits((bit_cast<uint32_t>(value) + 0xffff) & 0xffff0000);
}
GNN_DIST_INLINE float rounded_down(float value) {
  return value < 0 ? rounded_up(value) : from_bits(bit_cast<uint32_t>(value) & 0xffff0000);
}

GNN_DIST_INLINE Grid cover(float low, float high, bool finite, float most) {
  Grid grid{rounded_down(low + 0.0f), 0, false};  // + 0: no zero is negative
  const float range = high - grid.low + 0.0f;
  grid.step = rounded_up(range / most);
  // The quotient may have been rounded down, to zero even.
  if (grid.step * most < range) grid.step = from_bits(bit_cast<uint32_t>(grid.step) + 0x10000);
  const float reach = grid.step * most;
  grid.usable = finite && reach - reach == 0;
  return grid;
}

GNN_DIST_INLINE void write_grid(uint8_t* to, const Grid& grid) {
  constexpr uint16_t kNan = 0x7fc0;
  const uint16_t params[2] = {
      grid.usable ? static_cast<uint16_t>(bit_cast<uint32_t>(grid.low) >> 16) : kNan,
      grid.usable ? static_cast<uint16_t>(bit_cast<uint32_t>(grid.step) >> 16) : kNan};
  __builtin_memcpy(to, params, sizeof params);
}

GNN_DIST_INLINE Grid read_grid(const uint8_t* from) {
  uint16_t params[2];
  __builtin_memcpy(params, from, sizeof params);
  return {from_bits(uint32_t{params[0]} << 16), from_bits(uint32_t{params[1]} << 16), true};
}

template <class S>
struct LevelStep {
  const S* x;
  uint8_t* level;
  uint64_t row;
  int64_t first;  // column of the row where x and level begin
  float low, step, most;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    const auto place = (load_float<S, W>(x + column) - low) / step +
                       uniform<W>(draw<W>(row, first + column));
    const auto whole = convert<int32_t, float, W>(place > most ? broadcast<float, W>(most) : place);
    const auto narrow = convert<uint16_t, int32_t, W>(whole);
    store_plain<uint8_t, W>(level + column, convert<uint8_t, uint16_t, W>(narrow));
  }
};

// A mask of the low `kept` bits of every `every` bits.
constexpr uint64_t bit_mask(int kept, int every) {
  uint64_t mask = 0;
  for (int at = 0; at < 64; at += every) mask |= ((uint64_t{1} << kept) - 1) << at;
  return mask;
}

// Eight levels of one byte each in their lowest 8 * kBits bits, and back. Pairs meet first, then
// pairs of pairs, then those.
template <int kBits>
GNN_DIST_INLINE uint64_t squeeze(uint64_t levels) {
  levels = (levels | levels >> (8 - kBits)) & bit_mask(2 * kBits, 16);
  levels = (levels | levels >> 2 * (8 - kBits)) & bit_mask(4 * kBits, 32);
  return (levels | levels >> 4 * (8 - kBits)) & ((uint64_t{1} << 8 * kBits) - 1);
}
template <int kBits>
GNN_DIST_INLINE uint64_t spread(uint64_t packed) {
  packed = (packed | packed << 4 * (8 - kBits)) & bit_mask(4 * kBits, 32);
  packed = (packed | packed << 2 * (8 - kBits)) & bit_mask(2 * kBits, 16);
  return (packed | packed << (8 - kBits)) & bit_mask(kBits, 8);
}

// Levels are followed by eight bytes that may be read, and are zero.
template <int kBits>
void pack(const uint8_t* level, int64_t count, uint8_t* packed) {
  uint64_t levels, bytes;
  for (; count >= 8; count -= 8, level += 8, packed += kBits) {
    __builtin_memcpy(&levels, level, sizeof levels);
    bytes = squeeze<kBits>(levels);
    __builtin_memcpy(packed, &bytes, kBits);
  }
  __builtin_memcpy(&levels, level, sizeof levels);
  bytes = squeeze<kBits>(levels);
  for (int64_t i = 0; i < (count * kBits + 7) / 8; ++i) {
    packed[i] = static_cast<uint8_t>(bytes >> 8 * i);
  }
}
template <>
void pack<8>(const uint8_t* level, int64_t count, uint8_t* packed) {
  __builtin_memcpy(packed, level, count);
}

// Eight bytes after the levels may be written.
template <int kBits>
void unpack(const uint8_t* packed, int64_t count, uint8_t* level) {
  uint64_t levels, bytes = 0;
  for (; count >= 8; count -= 8, level += 8, packed += kBits) {
    __builtin_memcpy(&bytes, packed, kBits);
    levels = spread<kBits>(bytes);
    __builtin_memcpy(level, &levels, sizeof levels);
  }
  bytes = 0;
  for (int64_t i = 0; i < (count * kBits + 7) / 8; ++i) {
    bytes |= static_cast<uint64_t>(packed[i]) << 8 * i;
  }
  levels = spread<kBits>(bytes);
  __builtin_memcpy(level, &levels, sizeof levels);
}
template <>
void unpack<8>(const uint8_t* packed, int64_t count, uint8_t* level) {
  __builtin_memcpy(level, packed, count);
}

// Rows asked for ahead of their turn: those that an index picks lie anywhere.
constexpr int64_t kRowsAhead = 8;

template <class S>
bool quantize(const QuantizeCall& call, int64_t begin, int64_t end) {
  const auto pack_chunk = call.bits == 8   ? pack<8>
                          : call.bits == 4 ? pack<4>
                          : call.bits == 2 ? pack<2>
                                           : pack<1>;
  const auto most = static_cast<float>((1 << call.bits) - 1);
  const auto row_bytes = call.width * static_cast<int64_t>(sizeof(S));
  const auto num_rows = static_cast<uint64_t>(call.num_rows);
  const int64_t levels_bytes = (call.width * call.bits + 7) / 8;
  uint8_t level[kChunk + 8];
  for (int64_t i = begin; i < end; ++i) {
    if (call.index != nullptr) {
      if (static_cast<uint64_t>(call.index[i]) >= num_rows) return false;
      const int64_t next = i + kRowsAhead;
      if (next < end && row_bytes > 0 && static_cast<uint64_t>(call.index[next]) < num_rows) {
        prefetch_bytes(static_cast<const S*>(call.x) + call.index[next] * call.x_stride, row_bytes);
      }
    }
    const int64_t from = call.index != nullptr ? call.index[i] : i;
    const S* x = static_cast<const S*>(call.x) + from * call.x_stride;
    uint8_t* packed = call.packed + i * call.packed_stride;
    float low = 0, high = 0;
    bool finite = true;
    if (call.width > 0) extremes<S>(x, call.width, low, high, finite);
    const Grid grid = cover(low, high, finite, most);
    write_grid(packed, grid);
    packed += gnn_dist::kGridBytes;
    if (!grid.usable || grid.step == 0) {
      for (int64_t at = 0; at < levels_bytes; ++at) packed[at] = 0;
      continue;
    }
    const uint64_t row = gnn_dist::row_key(call.key, static_cast<uint64_t>(call.ids[i]));
    for (int64_t first = 0; first < call.width; first += kChunk) {
      const int64_t count = call.width - first < kChunk ? call.width - first : kChunk;
      cover_columns<full_width<accumulate_t<S>>>(
          count, LevelStep<S>{x + first, level, row, first, grid.low, grid.step, most});
      for (int64_t at = count; at < count + 8; ++at) level[at] = 0;
      pack_chunk(level, count, packed + first / 8 * call.bits);
    }
  }
  return true;
}

// What values saturate at: the highest level may lie above all of a row, and above what S holds.
template <class S>
constexpr float kLargest = is_same<S, f16>    ? 65504.0f
                           : is_same<S, bf16> ? 0x1.fep127f
                                              : 0x1.fffffep127f;

template <class S>
struct ValueStep {
  const uint8_t* level;
  S* x;
  float low, step;
  bool add;
  template <int W>
  GNN_DIST_INLINE void at(int64_t column) {
    using A = accumulate_t<S>;
    const auto narrow = convert<uint16_t, uint8_t, W>(load_plain<uint8_t, W>(level + column));
    const auto number = convert<float, int32_t, W>(convert<int32_t, uint16_t, W>(narrow));
    // The product, of 8 bits by 8, is exact: fused with the addition or not, the sum is the same.
    auto place = number * broadcast<float, W>(step) + broadcast<float, W>(low);
    const auto most = broadcast<float, W>(kLargest<S>);
    place = place > most ? most : place;
    if constexpr (is_same<S, f16>) place = place < -most ? -most : place;
    auto value = convert<A, float, W>(place);
    if (add) value += load<S, W>(x + column);
    store<S, W>(x + column, value);
  }
};

template <class S>
void dequantize(const QuantizeCall& call, int64_t begin, int64_t end) {
  const auto unpack_chunk = call.bits == 8   ? unpack<8>
                            : call.bits == 4 ? unpack<4>
                            : call.bits == 2 ? unpack<2>
                                             : unpack<1>;
  uint8_t level[kChunk + 8];
  for (int64_t i = begin; i < end; ++i) {
    S* x = static_cast<S*>(call.x) + i * call.x_stride;
    const uint8_t* packed = call.packed + i * call.packed_stride;
    const Grid grid = read_grid(packed);
    packed += gnn_dist::kGridBytes;
    for (int64_t first = 0; first < call.width; first += kChunk) {
      const int64_t count = call.width - first < kChunk ? call.width - first : kChunk;
      unpack_chunk(packed + first / 8 * call.bits, count, level);
      cover_columns<full_width<accumulate_t<S>>>(
          count, ValueStep<S>{level, x + first, grid.low, grid.step, call.add});
    }
  }
}

}  // namespace GNN_DIST_ISA

namespace gnn_dist {
using namespace GNN_DIST_ISA;
GNN_DIST_TABLE(QuantizeKernels, quantize) = {
    {GNN_DIST_ISA::quantize<float>, GNN_DIST_ISA::quantize<double>, GNN_DIST_ISA::quantize<bf16>,
     GNN_DIST_ISA::quantize<f16>},
    {GNN_DIST_ISA::dequantize<float>, GNN_DIST_ISA::dequantize<double>,
     GNN_DIST_ISA::dequantize<bf16>, GNN_DIST_ISA::dequantize<f16>}};
}  // namespace gnn_dist
