// AVX2, FMA and F16C. See simd.h.
#pragma once
#include <immintrin.h>

using vec = __m256;
using ints = __m256i;

inline vec load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, vec v) { _mm256_storeu_ps(p, v); }
inline vec splat(float x) { return _mm256_set1_ps(x); }
inline vec zero() { return _mm256_setzero_ps(); }
inline vec mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
inline vec div(vec a, vec b) { return _mm256_div_ps(a, b); }
inline vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
inline vec sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
inline vec absolute(vec v) { return _mm256_andnot_ps(splat(-0.0f), v); }

// b where either is no number.
inline vec max(vec a, vec b) { return _mm256_max_ps(a, b); }
inline vec min(vec a, vec b) { return _mm256_min_ps(a, b); }

inline ints add(ints a, ints b) { return _mm256_add_epi32(a, b); }
inline vec floats(ints v) { return _mm256_cvtepi32_ps(v); }

// Rounds to nearest, ties to even.
inline ints nearest(vec v) { return _mm256_cvtps_epi32(v); }

inline vec power_of_2(ints n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

// v, but zero in the lanes where x < least.
inline vec zero_below(vec x, vec least, vec v) { return _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), v); }

// The first n lanes of v, and `other` in the rest.
inline vec first_lanes(vec v, int n, float other) {
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 kept = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
  return _mm256_blendv_ps(splat(other), v, kept);
}

inline float f16(uint16_t bits) { return _cvtsh_ss(bits); }
inline vec load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

inline vec load_i8(const int8_t *p) { return floats(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }

inline vec load_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

// Rounds to nearest, ties to even, as torch does; finite numbers only.
inline void store_bf16(uint16_t *p, vec v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
  _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}

// Rounds to the nearest of -127 to 127, which the numbers must lie between.
inline void store_i8(int8_t *p, vec v) {
  __m256i words = nearest(v);
  __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(halves, halves));
}

// The lanes' sum and greatest, always in the same order.
inline float sum(vec v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

inline float greatest(vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

inline void transpose8(vec r[8]) {
  vec t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  vec u[8];
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}
