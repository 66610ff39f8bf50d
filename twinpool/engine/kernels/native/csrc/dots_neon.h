// NEON with dot products of 8 bits. See dots.h.
//
// They have no products of 8 by 16 bits, so codes of 16 are split: x = 256 high + low + 128, both signed and of 8 bits.
// A group's activations are its 32 high parts, then its 32 low ones.
#pragma once

inline int8x16_t splat4(const int8_t *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

// sum + codes * x of four neighbours, in the lanes of the outputs.
inline void add_products(ints &sum, int8x16_t first, int8x16_t second, int8x16_t x) {
  sum.low = vdotq_s32(sum.low, first, x);
  sum.high = vdotq_s32(sum.high, second, x);
}

template <int R>
[[gnu::always_inline]] inline void group_dots(const uint8_t *tile, const int8_t *x, int64_t stride, ints dots[R]) {
  const uint8x16_t low = vdupq_n_u8(0x0f);
  for (int r = 0; r < R; ++r) dots[r] = {vdupq_n_s32(0), vdupq_n_s32(0)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    uint8x16_t first = vld1q_u8(tile + 64 * i), second = vld1q_u8(tile + 64 * i + 16);
    int8x16_t low_first = vreinterpretq_s8_u8(vandq_u8(first, low)), high_first = vreinterpretq_s8_u8(vshrq_n_u8(first, 4));
    int8x16_t low_second = vreinterpretq_s8_u8(vandq_u8(second, low)), high_second = vreinterpretq_s8_u8(vshrq_n_u8(second, 4));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int8_t *at = x + r * stride + 4 * i;
      add_products(dots[r], low_first, low_second, splat4(at));
      add_products(dots[r], high_first, high_second, splat4(at + 16));
    }
  }
}

template <int R>
[[gnu::always_inline]] inline void group_dots(const uint8_t *tile, const int16_t *x, int64_t stride, ints dots[R]) {
  const uint8x16_t top = vdupq_n_u8(0x80);  // flipping it subtracts 128
  int8x16_t codes[8][2];
  ints totals = {vdupq_n_s32(0), vdupq_n_s32(0)};
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    for (int k = 0; k < 2; ++k) codes[i][k] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(tile + 64 * i + 16 * k), top));
    add_products(totals, codes[i][0], codes[i][1], vdupq_n_s8(1));
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const int8_t *at = (const int8_t *)(x + r * stride);
    ints high = {vdupq_n_s32(0), vdupq_n_s32(0)}, low = high;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      add_products(high, codes[i][0], codes[i][1], splat4(at + 4 * i));
      add_products(low, codes[i][0], codes[i][1], splat4(at + 32 + 4 * i));
    }
    dots[r].low = vaddq_s32(low.low, vaddq_s32(vshlq_n_s32(high.low, 8), vshlq_n_s32(totals.low, 7)));
    dots[r].high = vaddq_s32(low.high, vaddq_s32(vshlq_n_s32(high.high, 8), vshlq_n_s32(totals.high, 7)));
  }
}

inline void store_codes(int16_t *x, const ints whole[4]) {
  int8_t *to = (int8_t *)x;
  for (int i = 0; i < 4; ++i) {
    int16x8_t eight = shorts(whole[i]);
    vst1_s8(to + 8 * i, vshrn_n_s16(eight, 8));
    vst1_s8(to + 32 + 8 * i, veor_s8(vmovn_s16(eight), vdup_n_s8(-128)));
  }
}

inline void store_codes(int8_t *x, const ints whole[4]) {
  for (int i = 0; i < 4; ++i) vst1_s8(x + 8 * i, vqmovn_s16(shorts(whole[i])));
}
