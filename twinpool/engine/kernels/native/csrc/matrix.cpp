#include "matrix.h"

#include <math.h>

namespace {

constexpr int64_t INT4_TILE = 320, INT8_TILE = 576;

inline int64_t strip_bytes(const tp_matrix &m) {
  switch (m.format) {
    case TP_FLOAT32: return (int64_t)m.inputs * STRIP * 4;
    case TP_BFLOAT16: return (int64_t)m.inputs * STRIP * 2;
    case TP_INT8: return round_up(m.inputs, GROUP) / GROUP * INT8_TILE;
    default: return round_up(m.inputs, GROUP) / GROUP * INT4_TILE;
  }
}

inline const uint8_t *strip_of(const tp_matrix &m, int strip) {
  return static_cast<const uint8_t *>(m.strips) + strip * strip_bytes(m);
}

// ---- float32 and bfloat16: 16 outputs of R rows are held in registers over all inputs

inline vec weights8(const float *p) { return load(p); }
inline vec weights8(const uint16_t *p) { return load_bf16(p); }

template <int R, class Weight>
void float_tile(const Weight *w, int inputs, const float *x, int64_t x_stride, float *out, int64_t out_stride) {
  vec sums[R][2];
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = zero();
  for (int k = 0; k < inputs; ++k, w += STRIP) {
    vec low = weights8(w), high = weights8(w + LANES);
    for (int r = 0; r < R; ++r) {
      vec value = splat(x[r * x_stride + k]);
      sums[r][0] = fma(value, low, sums[r][0]);
      sums[r][1] = fma(value, high, sums[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(out + r * out_stride, sums[r][0]);
    store(out + r * out_stride + LANES, sums[r][1]);
  }
}

template <class Weight>
void float_strip(const Weight *w, int inputs, const float *x, int64_t xs, int rows, float *out, int64_t os) {
  for (; rows >= 6; rows -= 6, x += 6 * xs, out += 6 * os) float_tile<6>(w, inputs, x, xs, out, os);
  switch (rows) {
    case 5: return float_tile<5>(w, inputs, x, xs, out, os);
    case 4: return float_tile<4>(w, inputs, x, xs, out, os);
    case 3: return float_tile<3>(w, inputs, x, xs, out, os);
    case 2: return float_tile<2>(w, inputs, x, xs, out, os);
    case 1: return float_tile<1>(w, inputs, x, xs, out, os);
    default: return;
  }
}

// ---- int8 and int4: 8 outputs of R rows, a group of 32 inputs at a time

inline __m256i read32(const uint8_t *p) { return _mm256_load_si256((const __m256i *)p); }

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

// sums += (scale * (codes * x) + minimum * (sum of x)) of a group, whose codes were lowered by `centre`.
template <int R>
inline void scale_and_add(const __m256i dots[R], const uint16_t *numbers, float centre, const Activations &x, int row,
                          int group, vec sums[R]) {
  vec scale = load_f16(numbers), minimum = load_f16(numbers + STRIP);
  if (centre != 0) minimum = fma(splat(centre), scale, minimum);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    int64_t at = (int64_t)(row + r) * x.num_groups + group;
    sums[r] = fma(minimum, splat(x.sums[at]), sums[r]);
    sums[r] = fma(mul(scale, splat(x.scales[at])), _mm256_cvtepi32_ps(dots[r]), sums[r]);
  }
}

// Sums in integers stay in registers for all rows while a group's codes pass by.
template <int R>
void int4_tile(const uint8_t *strip, const Activations &x, int row, float *out, int64_t out_stride) {
  const int groups = x.num_groups;
  const int64_t stride = (int64_t)groups * GROUP;
  for (int half = 0; half < 2; ++half) {
    vec sums[R];
    for (int r = 0; r < R; ++r) sums[r] = zero();
    const uint8_t *tile = strip + 32 * half;
    const int8_t *codes = (const int8_t *)x.codes + row * stride;
    for (int g = 0; g < groups; ++g, tile += INT4_TILE, codes += GROUP) {
      const __m256i low = _mm256_set1_epi8(0x0f);
      __m256i dots[R];
      for (int r = 0; r < R; ++r) dots[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        __m256i both = read32(tile + 64 * i);
        __m256i first = _mm256_and_si256(both, low), second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const int8_t *at = codes + r * stride + 4 * i;
          dots[r] = add_products8(dots[r], first, splat4(at));
          dots[r] = add_products8(dots[r], second, splat4(at + 16));
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) dots[r] = total8(dots[r]);
      scale_and_add<R>(dots, (const uint16_t *)(tile - 32 * half + 256) + LANES * half, 0, x, row, g, sums);
    }
    for (int r = 0; r < R; ++r) store(out + r * out_stride + LANES * half, sums[r]);
  }
}

template <int R>
void int8_tile(const uint8_t *strip, const Activations &x, int row, float *out, int64_t out_stride) {
  const int groups = x.num_groups;
  const int64_t stride = (int64_t)groups * GROUP;
  for (int half = 0; half < 2; ++half) {
    vec sums[R];
    for (int r = 0; r < R; ++r) sums[r] = zero();
    const uint8_t *tile = strip + 32 * half;
    const int16_t *codes = (const int16_t *)x.codes + row * stride;
    for (int g = 0; g < groups; ++g, tile += INT8_TILE, codes += GROUP) {
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
          __m256i four = splat4(codes + r * stride + 4 * i);
          low[r] = add_products16(low[r], first, four);
          high[r] = add_products16(high[r], second, four);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) low[r] = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low[r], high[r]), 0xd8);
      scale_and_add<R>(low, (const uint16_t *)(tile - 32 * half + 512) + LANES * half, 128, x, row, g, sums);
    }
    for (int r = 0; r < R; ++r) store(out + r * out_stride + LANES * half, sums[r]);
  }
}

using NarrowTile = void (*)(const uint8_t *, const Activations &, int, float *, int64_t);
constexpr int MOST_ROWS = 6;
constexpr NarrowTile INT4_TILES[] = {int4_tile<1>, int4_tile<2>, int4_tile<3>, int4_tile<4>, int4_tile<5>, int4_tile<6>};
constexpr NarrowTile INT8_TILES[] = {int8_tile<1>, int8_tile<2>, int8_tile<3>, int8_tile<4>, int8_tile<5>, int8_tile<6>};

void narrow_strip(const NarrowTile *tiles, const uint8_t *strip, const Activations &x, int row, int rows, float *out,
                  int64_t os) {
  for (; rows >= MOST_ROWS; rows -= MOST_ROWS, row += MOST_ROWS, out += MOST_ROWS * os)
    tiles[MOST_ROWS - 1](strip, x, row, out, os);
  if (rows) tiles[rows - 1](strip, x, row, out, os);
}

inline float f16(uint16_t bits) { return _cvtsh_ss(bits); }

}  // namespace

void quantise_row(int weights, const float *x, int inputs, const Activations &to, int row) {
  const bool wide = weights == TP_INT8;
  const float most_code = wide ? 32767.0f : 127.0f;
  int64_t group = (int64_t)row * to.num_groups;
  for (int first = 0; first < inputs; first += GROUP, ++group) {
    vec values[4], most = zero();
    for (int i = 0; i < 4; ++i) {
      int left = inputs - first - LANES * i;
      if (left >= LANES) {
        values[i] = load(x + first + LANES * i);
      } else {
        float rest[LANES] = {0};
        for (int j = 0; j < left; ++j) rest[j] = x[first + LANES * i + j];
        values[i] = load(rest);
      }
      most = max(most, absolute(values[i]));
    }
    float scale = greatest(most) / most_code;
    vec inverse = splat(scale > 0 ? 1.0f / scale : 0.0f);
    __m256i whole[4];
    for (int i = 0; i < 4; ++i) whole[i] = _mm256_cvtps_epi32(mul(values[i], inverse));
    __m256i total = _mm256_add_epi32(_mm256_add_epi32(whole[0], whole[1]), _mm256_add_epi32(whole[2], whole[3]));
    // Packing works within halves of vectors.
    __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
    if (wide) {
      __m256i *out = (__m256i *)((int16_t *)to.codes + group * GROUP);
      _mm256_storeu_si256(out, _mm256_permute4x64_epi64(low, 0xd8));
      _mm256_storeu_si256(out + 1, _mm256_permute4x64_epi64(high, 0xd8));
    } else {
      __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
      _mm256_storeu_si256((__m256i *)((int8_t *)to.codes + group * GROUP), codes);
    }
    to.scales[group] = scale;
    to.sums[group] = scale * sum(_mm256_cvtepi32_ps(total));
  }
}

void strip_product(const tp_matrix &m, int strip, const Activations &x, int first_row, int end_row, float *out,
                   int64_t os) {
  const uint8_t *w = strip_of(m, strip);
  int rows = end_row - first_row;
  switch (m.format) {
    case TP_FLOAT32:
      return float_strip((const float *)w, m.inputs, x.rows + (int64_t)first_row * x.row_size, x.row_size, rows, out, os);
    case TP_BFLOAT16:
      return float_strip((const uint16_t *)w, m.inputs, x.rows + (int64_t)first_row * x.row_size, x.row_size, rows, out, os);
    case TP_INT8: return narrow_strip(INT8_TILES, w, x, first_row, rows, out, os);
    default: return narrow_strip(INT4_TILES, w, x, first_row, rows, out, os);
  }
}

void matrix_row(const tp_matrix &m, int output, float *out) {
  const uint8_t *w = strip_of(m, output / STRIP);
  int o = output % STRIP;
  for (int k = 0; k < m.inputs; ++k) {
    if (m.format == TP_FLOAT32) {
      out[k] = ((const float *)w)[(int64_t)k * STRIP + o];
    } else if (m.format == TP_BFLOAT16) {
      uint32_t bits = (uint32_t)((const uint16_t *)w)[(int64_t)k * STRIP + o] << 16;
      memcpy(&out[k], &bits, 4);
    } else {
      bool wide = m.format == TP_INT8;
      const uint8_t *tile = w + k / GROUP * (wide ? INT8_TILE : INT4_TILE);
      int i = k % GROUP;
      int code = wide ? tile[i / 4 * 64 + o * 4 + i % 4] : tile[i % 16 / 4 * 64 + o * 4 + i % 4] >> (i / 16 * 4) & 15;
      const uint16_t *scales = (const uint16_t *)(tile + (wide ? 512 : 256));
      out[k] = f16(scales[o]) * code + f16(scales[STRIP + o]);
    }
  }
}
