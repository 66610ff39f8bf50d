// NEON of 64 bits: two vectors of four, one after the other. See simd.h.
#pragma once
#include <arm_neon.h>

struct vec {
  float32x4_t low, high;
};

struct ints {
  int32x4_t low, high;
};

inline vec load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float *p, vec v) { vst1q_f32(p, v.low), vst1q_f32(p + 4, v.high); }
inline vec splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline vec zero() { return splat(0.0f); }
inline vec mul(vec a, vec b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline vec div(vec a, vec b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline vec add(vec a, vec b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline vec sub(vec a, vec b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline vec fma(vec a, vec b, vec c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
inline vec absolute(vec v) { return {vabsq_f32(v.low), vabsq_f32(v.high)}; }

// b where either is no number, which vmaxq is not.
inline float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t min4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline vec max(vec a, vec b) { return {max4(a.low, b.low), max4(a.high, b.high)}; }
inline vec min(vec a, vec b) { return {min4(a.low, b.low), min4(a.high, b.high)}; }

inline ints add(ints a, ints b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
inline vec floats(ints v) { return {vcvtq_f32_s32(v.low), vcvtq_f32_s32(v.high)}; }

// Rounds to nearest, ties to even.
inline ints nearest(vec v) { return {vcvtnq_s32_f32(v.low), vcvtnq_s32_f32(v.high)}; }

inline vec power_of_2(ints n) {
  n = add(n, {vdupq_n_s32(127), vdupq_n_s32(127)});
  return {vreinterpretq_f32_s32(vshlq_n_s32(n.low, 23)), vreinterpretq_f32_s32(vshlq_n_s32(n.high, 23))};
}

// v, but zero in the lanes where x < least.
inline vec zero_below(vec x, vec least, vec v) {
  const float32x4_t none = vdupq_n_f32(0.0f);
  return {vbslq_f32(vcltq_f32(x.low, least.low), none, v.low), vbslq_f32(vcltq_f32(x.high, least.high), none, v.high)};
}

// The first n lanes of v, and `other` in the rest.
inline vec first_lanes(vec v, int n, float other) {
  const int32x4_t lane = {0, 1, 2, 3}, end = vdupq_n_s32(n), later = vdupq_n_s32(n - 4);
  const float32x4_t rest = vdupq_n_f32(other);
  return {vbslq_f32(vcltq_s32(lane, end), v.low, rest), vbslq_f32(vcltq_s32(lane, later), v.high, rest)};
}

inline float32x4_t halves4(uint16x4_t bits) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }
inline float f16(uint16_t bits) { return vgetq_lane_f32(halves4(vdup_n_u16(bits)), 0); }
inline vec load_f16(const uint16_t *p) { return {halves4(vld1_u16(p)), halves4(vld1_u16(p + 4))}; }

inline vec load_i8(const int8_t *p) {
  int16x8_t v = vmovl_s8(vld1_s8(p));
  return floats({vmovl_s16(vget_low_s16(v)), vmovl_high_s16(v)});
}

inline vec load_bf16(const uint16_t *p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)), vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4), 16))};
}

inline uint16x4_t bfloat4(float32x4_t v) {
  uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
}

// Rounds to nearest, ties to even, as torch does; finite numbers only.
inline void store_bf16(uint16_t *p, vec v) { vst1_u16(p, bfloat4(v.low)), vst1_u16(p + 4, bfloat4(v.high)); }

inline int16x8_t shorts(ints v) { return vqmovn_high_s32(vqmovn_s32(v.low), v.high); }

// Rounds to the nearest of -127 to 127, which the numbers must lie between.
inline void store_i8(int8_t *p, vec v) { vst1_s8(p, vqmovn_s16(shorts(nearest(v)))); }

// The lanes' sum and greatest, always in the same order.
inline float sum(vec v) {
  float32x4_t x = vaddq_f32(v.low, v.high);
  x = vaddq_f32(x, vextq_f32(x, x, 2));
  return vgetq_lane_f32(x, 0) + vgetq_lane_f32(x, 1);
}

inline float greatest(vec v) {
  float32x4_t x = max4(v.low, v.high);
  x = max4(x, vextq_f32(x, x, 2));
  return vgetq_lane_f32(max4(x, vextq_f32(x, x, 1)), 0);
}

inline void transpose4(float32x4_t &a, float32x4_t &b, float32x4_t &c, float32x4_t &d) {
  float64x2_t ab = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
  float64x2_t cd = vreinterpretq_f64_f32(vtrn1q_f32(c, d)), cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
  a = vreinterpretq_f32_f64(vtrn1q_f64(ab, cd)), b = vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd));
  c = vreinterpretq_f32_f64(vtrn2q_f64(ab, cd)), d = vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd));
}

inline void transpose8(vec r[8]) {
  for (int i = 0; i < 8; i += 4) {
    transpose4(r[i].low, r[i + 1].low, r[i + 2].low, r[i + 3].low);
    transpose4(r[i].high, r[i + 1].high, r[i + 2].high, r[i + 3].high);
  }
  for (int i = 0; i < 4; ++i) {
    float32x4_t corner = r[i].high;
    r[i].high = r[i + 4].low, r[i + 4].low = corner;
  }
}
