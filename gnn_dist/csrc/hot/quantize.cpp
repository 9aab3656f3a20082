// Stochastic quantisation of rows. Every operation is rounded as in the reference: bits are equal.
#include "../quantize.h"

#include "../columns.h"
#include "../simd.h"
#include "../simd_draws.h"

namespace GNN_DIST_ISA {

using gnn_dist::QuantizeCall;

constexpr int64_t kChunk = 512;  // columns between which and their packed form levels are kept

// a * b, rounded: a compiler may not fuse it with an addition.
template <int W>
GNN_DIST_INLINE vec<float, W> rounded_product(vec<float, W> a, vec<float, W> b) {
  vec<float, W> product = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#else
  asm("" : "+m"(product));
#endif
  return product;
}

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

template <class S>
void quantize(const QuantizeCall& call, int64_t begin, int64_t end) {
  const auto pack_chunk = call.bits == 8   ? pack<8>
                          : call.bits == 4 ? pack<4>
                          : call.bits == 2 ? pack<2>
                                           : pack<1>;
  const auto most = static_cast<float>((1 << call.bits) - 1);
  uint8_t level[kChunk + 8];
  for (int64_t i = begin; i < end; ++i) {
    const S* x = static_cast<const S*>(call.x) + i * call.x_stride;
    uint8_t* packed = call.packed + i * call.packed_stride;
    float low = 0, high = 0;
    bool finite = true;
    if (call.width > 0) extremes<S>(x, call.width, low, high, finite);
    float step = (high - low) / most;
    finite = finite && step - step == 0;
    call.params[2 * i] = finite ? low : __builtin_nanf("");
    call.params[2 * i + 1] = finite ? step : __builtin_nanf("");
    if (!finite || step == 0) {
      for (int64_t at = 0; at < call.packed_stride; ++at) packed[at] = 0;
      continue;
    }
    const uint64_t row = gnn_dist::row_key(call.key, static_cast<uint64_t>(call.ids[i]));
    for (int64_t first = 0; first < call.width; first += kChunk) {
      const int64_t count = call.width - first < kChunk ? call.width - first : kChunk;
      cover_columns<full_width<accumulate_t<S>>>(
          count, LevelStep<S>{x + first, level, row, first, low, step, most});
      for (int64_t at = count; at < count + 8; ++at) level[at] = 0;
      pack_chunk(level, count, packed + first / 8 * call.bits);
    }
  }
}

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
    const auto rounded =
        rounded_product<W>(number, broadcast<float, W>(step)) + broadcast<float, W>(low);
    auto value = convert<A, float, W>(rounded);
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
    for (int64_t first = 0; first < call.width; first += kChunk) {
      const int64_t count = call.width - first < kChunk ? call.width - first : kChunk;
      unpack_chunk(packed + first / 8 * call.bits, count, level);
      cover_columns<full_width<accumulate_t<S>>>(
          count, ValueStep<S>{level, x + first, call.params[2 * i], call.params[2 * i + 1],
                              call.add});
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
