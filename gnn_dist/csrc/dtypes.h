// Storage types of two bytes, and their conversion without special instructions.
#pragma once

#include <stdint.h>
#include <string.h>

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  uint32_t mantissa = half & 0x3ff;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    // Zero and subnormal numbers: mantissa * 2^-24 is exact.
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    memcpy(&bits, &value, sizeof bits);
    bits |= sign;
  }
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

static inline uint16_t float_to_half(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;   // NaN
  if (bits >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
  if (bits < 0x38800000) {
    // Below 2^-14: adding 0.5 lets the float unit round at the last subnormal bit, 2^-24.
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    uint32_t shifted;
    memcpy(&shifted, &magnitude, sizeof shifted);
    return sign | static_cast<uint16_t>(shifted - 0x3f000000);
  }
  const uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}
