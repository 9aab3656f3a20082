// Drawing entries of one row of a CSR structure, as defined in ops/reference/sampling.py.
//
// A draw depends on the row's key and on the order of its entries, on nothing else. The entries
// drawn are returned in ascending order, so that what reads them walks forward through memory.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "draws.h"
#include "tensors.h"

namespace gnn_dist {

constexpr int64_t kMostRowEntries = std::numeric_limits<int32_t>::max();

// Returns the first entry of a row, and how many it has.
inline std::pair<int64_t, int64_t> entries_of_row(const CsrView& csr, int64_t row) {
  const int64_t begin = csr.indptr[row], end = csr.indptr[row + 1];
  check_index(begin >= 0 && begin <= end && end <= csr.nnz,
              "indptr must not fall, it does at row ", row);
  check(end - begin <= kMostRowEntries, "rows must have fewer than 2^31 entries, row ", row,
        " has ", end - begin);
  return {begin, end - begin};
}

// Uniform in [0, bound): the whole part of word / 2^64 * bound.
inline uint64_t below(uint64_t word, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
}

// Uniform in [0, 1).
inline double unit(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

// -ln(u), u uniform in (0, 1). Written out, because a logarithm of some library differs in its last
// bit from that of another, and then so would the draws of two machines.
inline double exponential(uint64_t word) {
  const double u = (static_cast<double>(word >> 12) + 0.5) * 0x1p-52;
  uint64_t bits;
  memcpy(&bits, &u, sizeof bits);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
  double mantissa;
  memcpy(&mantissa, &bits, sizeof mantissa);
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    exponent += 1;
  }
  // ln m = 2 artanh(s), s = (m - 1) / (m + 1); |s| < 0.172, so eleven terms reach 2^-53.
  const double s = (mantissa - 1.0) / (mantissa + 1.0), z = s * s;
  double series = 0.0;
  for (int odd = 21; odd >= 1; odd -= 2) series = series * z + 1.0 / odd;
  return -(static_cast<double>(exponent) * 0.6931471805599453 + (s + s) * series);
}

// Weights of all entries, or none.
class WeightView {
 public:
  WeightView() = default;
  WeightView(const OptionalTensor& weight, int64_t nnz) {
    if (!weight.has_value()) return;
    const bool single = weight->scalar_type() == ScalarType::Float;
    if (single) {
      singles_ = flat<float>(*weight, ScalarType::Float, "weight");
    } else {
      doubles_ = flat<double>(*weight, ScalarType::Double, "weight");
    }
    check(weight->size(0) == nnz, "weight must have one element per entry (", nnz, "), got ",
          weight->size(0));
    // A tensor without elements may have no address.
    present_ = true;
  }
  bool present() const { return present_; }
  double operator[](int64_t entry) const {
    const double value = singles_ != nullptr ? singles_[entry] : doubles_[entry];
    check(value >= 0.0 && value <= std::numeric_limits<double>::max(),
          "weights must be finite and not negative, entry ", entry, " has ", value);
    return value;
  }

 private:
  const float* singles_ = nullptr;
  const double* doubles_ = nullptr;
  bool present_ = false;
};

// A set of numbers that gives them back in ascending order: a tree of words, in which a bit says
// that there is something below it. Neither clearing nor ordering takes time but for what is in it.
class PickSet {
 public:
  void reserve(uint64_t size) {
    depth_ = 0;
    do {
      size = (size + 63) / 64;
      if (levels_[depth_].size() < size) levels_[depth_].resize(size);
      ++depth_;
    } while (size > 1);
  }
  // False: it was there.
  bool insert(uint64_t number) {
    for (int level = 0; level < depth_; ++level, number >>= 6) {
      uint64_t& here = levels_[level][number >> 6];
      const uint64_t before = here, bit = uint64_t{1} << (number & 63);
      here |= bit;
      if (before != 0) return level > 0 || (before & bit) == 0;
    }
    return true;
  }
  // Empties the set.
  int64_t* write_to(int64_t* out, int64_t offset) { return write(depth_ - 1, 0, out, offset); }

 private:
  int64_t* write(int level, uint64_t index, int64_t* out, int64_t offset) {
    uint64_t bits = std::exchange(levels_[level][index], 0);
    for (; bits != 0; bits &= bits - 1) {
      const uint64_t number = index * 64 + static_cast<uint64_t>(__builtin_ctzll(bits));
      if (level > 0) {
        out = write(level - 1, number, out, offset);
      } else {
        *out++ = offset + static_cast<int64_t>(number);
      }
    }
    return out;
  }

  static constexpr int kMostLevels = 6;  // 64^6 > 2^31
  std::vector<uint64_t> levels_[kMostLevels];
  int depth_ = 0;
};

struct PickRule {
  int64_t fanout;  // -1: all
  bool replace;
  WeightView weight;

  void check_fanout() const {
    check(fanout >= -1 && fanout <= kMostRowEntries,
          "fan-outs must be -1 (all), or from 0 to 2^31 - 1, got ", fanout);
  }
};

// The picks of one thread.
class Picker {
 public:
  // How many entries of [begin, begin + degree) will be drawn.
  int64_t count(const PickRule& rule, int64_t begin, int64_t degree) const {
    int64_t candidates = degree;
    if (rule.weight.present()) {
      candidates = 0;
      for (int64_t i = 0; i < degree; ++i) candidates += rule.weight[begin + i] > 0.0;
    }
    if (rule.fanout < 0 || candidates == 0) return candidates;
    return rule.replace ? rule.fanout : std::min(candidates, rule.fanout);
  }

  // Writes the entries drawn, `count` of them as returned by count().
  void pick(const PickRule& rule, uint64_t row, int64_t begin, int64_t degree, int64_t count,
            int64_t* out) {
    if (count == 0) return;
    const bool draws = rule.fanout >= 0;
    if (rule.weight.present()) {
      if (!draws) return all_positive(rule.weight, begin, degree, out);
      if (rule.replace) return weighted_repeats(rule.weight, row, begin, degree, count, out);
      return weighted(rule.weight, row, begin, degree, count, out);
    }
    if (draws && rule.replace) return repeats(row, begin, degree, count, out);
    if (count == degree) {
      for (int64_t i = 0; i < count; ++i) out[i] = begin + i;
    } else if (degree <= 64) {
      floyd_64(row, begin, degree, count, out);
    } else if (degree <= 64 * 64) {
      floyd_4096(row, begin, degree, count, out);
    } else {
      floyd(row, begin, degree, count, out);
    }
  }

 private:
  // Floyd's algorithm: the i-th of k picks is a number up to d - k + i, or that number itself where
  // the first is taken. Source: "Programming Pearls: A Sample of Brilliance" (Bentley, Floyd, 1987).
  void floyd(uint64_t row, int64_t begin, int64_t degree, int64_t count, int64_t* out) {
    picked_.reserve(static_cast<uint64_t>(degree));
    for (int64_t i = 0; i < count; ++i) {
      const auto last = static_cast<uint64_t>(degree - count + i);
      if (!picked_.insert(below(word(row, i), last + 1))) picked_.insert(last);
    }
    picked_.write_to(out, begin);
  }

  // The same with the set in one register.
  static void floyd_64(uint64_t row, int64_t begin, int64_t degree, int64_t count, int64_t* out) {
    uint64_t set = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto last = static_cast<uint64_t>(degree - count + i);
      const uint64_t bit = uint64_t{1} << below(word(row, i), last + 1);
      set |= (set & bit) != 0 ? uint64_t{1} << last : bit;
    }
    for (int64_t i = 0; i < count; ++i, set &= set - 1) out[i] = begin + __builtin_ctzll(set);
  }

  // The same with two levels, without a branch that depends on what is drawn.
  static void floyd_4096(uint64_t row, int64_t begin, int64_t degree, int64_t count,
                         int64_t* out) {
    uint64_t set[64], top = 0;
    for (int64_t i = 0; i < (degree + 63) / 64; ++i) set[i] = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto last = static_cast<uint64_t>(degree - count + i);
      const uint64_t first = below(word(row, i), last + 1);
      const bool taken = (set[first >> 6] >> (first & 63) & 1) != 0;
      const uint64_t number = taken ? last : first;
      set[number >> 6] |= uint64_t{1} << (number & 63);
      top |= uint64_t{1} << (number >> 6);
    }
    uint64_t at = static_cast<uint64_t>(__builtin_ctzll(top)), bits = set[at];
    for (int64_t i = 0; i < count; ++i) {
      out[i] = begin + static_cast<int64_t>(at * 64) + __builtin_ctzll(bits);
      bits &= bits - 1;
      const bool empty = bits == 0;
      const uint64_t rest = top & (top - 1);
      const auto next = static_cast<uint64_t>(__builtin_ctzll(rest | uint64_t{1} << 63));
      top = empty ? rest : top;
      at = empty ? next : at;
      bits = empty && rest != 0 ? set[next] : bits;
    }
  }

  static void repeats(uint64_t row, int64_t begin, int64_t degree, int64_t count, int64_t* out) {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = begin + static_cast<int64_t>(below(word(row, i), static_cast<uint64_t>(degree)));
    }
    std::sort(out, out + count);
  }

  static void all_positive(const WeightView& weight, int64_t begin, int64_t degree, int64_t* out) {
    for (int64_t i = begin; i < begin + degree; ++i) {
      if (weight[i] > 0.0) *out++ = i;
    }
  }

  // The entries of smallest -ln(u) / weight. Source: "Weighted random sampling with a reservoir"
  // (Efraimidis, Spirakis, 2006), algorithm A-Res, in logarithms.
  void weighted(const WeightView& weight, uint64_t row, int64_t begin, int64_t degree,
                int64_t count, int64_t* out) {
    keys_.clear();
    for (int64_t i = 0; i < degree; ++i) {
      const double w = weight[begin + i];
      if (w == 0.0) continue;
      const std::pair<double, int64_t> key{exponential(word(row, i)) / w, begin + i};
      if (static_cast<int64_t>(keys_.size()) < count) {
        keys_.push_back(key);
        std::push_heap(keys_.begin(), keys_.end());
      } else if (key < keys_.front()) {
        std::pop_heap(keys_.begin(), keys_.end());
        keys_.back() = key;
        std::push_heap(keys_.begin(), keys_.end());
      }
    }
    for (int64_t i = 0; i < count; ++i) out[i] = keys_[i].second;
    std::sort(out, out + count);
  }

  // The entry at which the running sum of weights passes u times the total.
  void weighted_repeats(const WeightView& weight, uint64_t row, int64_t begin, int64_t degree,
                        int64_t count, int64_t* out) {
    sums_.resize(degree);
    double total = 0.0;
    for (int64_t i = 0; i < degree; ++i) sums_[i] = total += weight[begin + i];
    check(total <= std::numeric_limits<double>::max(), "weights are too large to be added up");
    for (int64_t i = 0; i < count; ++i) {
      auto found = std::upper_bound(sums_.begin(), sums_.end(), unit(word(row, i)) * total);
      // The product may round up to the total.
      if (found == sums_.end()) found = std::lower_bound(sums_.begin(), sums_.end(), total);
      out[i] = begin + (found - sums_.begin());
    }
    std::sort(out, out + count);
  }

  PickSet picked_;
  std::vector<std::pair<double, int64_t>> keys_;
  std::vector<double> sums_;
};

}  // namespace gnn_dist
