// AVX2, and AVX512's dot products where the build has them. See dots.h.
#pragma once

// sum + codes * x of four neighbours, in the lanes of the outputs: unsigned codes of 4 bits by signed ones of 8.
inline __m256i add_products8(__m256i sum, __m256i codes, __m256i x) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(sum, codes, x);
#else
  // In 16 bits, where all products of a group fit: 16 by 15 by 127 is 30480.
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x));
#endif
}

inline __m256i total8(__m256i sum) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return sum;
#else
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
#endif
}

// The same of two neighbours, signed and of 16 bits.
inline __m256i add_products16(__m256i sum, __m256i codes, __m256i x) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpwssd_epi32(sum, codes, x);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
#endif
}

// Four neighbouring codes of a row, in all lanes.
inline __m256i splat4(const int8_t *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return _mm256_set1_epi32(four);
}

inline __m256i splat4(const int16_t *p) {
  int64_t four;
  memcpy(&four, p, sizeof four);
  return _mm256_set1_epi64x(four);
}

template <int R>
[[gnu::always_inline]] inline void group_dots(const uint8_t *tile, const int8_t *x, int64_t stride, ints dots[R]) {
  const __m256i low = _mm256_set1_epi8(0x0f);
  for (int r = 0; r < R; ++r) dots[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i both = _mm256_load_si256((const __m256i *)(tile + 64 * i));
    __m256i first = _mm256_and_si256(both, low), second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int8_t *at = x + r * stride + 4 * i;
      dots[r] = add_products8(dots[r], first, splat4(at));
      dots[r] = add_products8(dots[r], second, splat4(at + 16));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) dots[r] = total8(dots[r]);
}

template <int R>
[[gnu::always_inline]] inline void group_dots(const uint8_t *tile, const int16_t *x, int64_t stride, ints dots[R]) {
  const __m128i top = _mm_set1_epi8((char)0x80);  // flipping it subtracts 128
  __m256i low[R], high[R];                        // outputs 0-3 and 4-7, two sums of each side by side
  for (int r = 0; r < R; ++r) low[r] = high[r] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m128i *at = (const __m128i *)(tile + 64 * i);
    __m256i first = _mm256_cvtepi8_epi16(_mm_xor_si128(_mm_load_si128(at), top));
    __m256i second = _mm256_cvtepi8_epi16(_mm_xor_si128(_mm_load_si128(at + 1), top));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      __m256i four = splat4(x + r * stride + 4 * i);
      low[r] = add_products16(low[r], first, four);
      high[r] = add_products16(high[r], second, four);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) dots[r] = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low[r], high[r]), 0xd8);
}

// Packing works within halves of vectors.
inline void store_codes(int16_t *x, const ints whole[4]) {
  __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
  _mm256_storeu_si256((__m256i *)x, _mm256_permute4x64_epi64(low, 0xd8));
  _mm256_storeu_si256((__m256i *)x + 1, _mm256_permute4x64_epi64(high, 0xd8));
}

inline void store_codes(int8_t *x, const ints whole[4]) {
  __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256((__m256i *)x, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
}
