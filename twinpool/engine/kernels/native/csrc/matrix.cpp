#include "matrix.h"

#include "dots.h"

namespace {

constexpr int INT4_TILE = 320, INT8_TILE = 576;  // bytes

inline int64_t strip_bytes(const tp_matrix &m) {
  switch (m.format) {
    case TP_FLOAT32: return (int64_t)m.inputs * STRIP * 4;
    case TP_BFLOAT16: return (int64_t)m.inputs * STRIP * 2;
    case TP_INT8: return (int64_t)num_groups(m.inputs) * INT8_TILE;
    default: return (int64_t)num_groups(m.inputs) * INT4_TILE;
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

// A group's tile: so many bytes, of which those from `numbers` on are scales and minimums. The dot products are of codes
// lowered by `centre`.
struct TileShape {
  int bytes, numbers;
  float centre;
};

constexpr TileShape shape_for(int8_t) { return {INT4_TILE, 256, 0}; }
constexpr TileShape shape_for(int16_t) { return {INT8_TILE, 512, 128}; }

// sums += scale * (codes * x) + minimum * (sum of x), of a group. Sums in integers stay in registers for all rows
// while a group's codes pass by.
template <class Code, int R>
void narrow_tile(const uint8_t *strip, const Activations &x, int row, float *out, int64_t out_stride) {
  constexpr TileShape shape = shape_for(Code());
  const int groups = x.num_groups;
  const int64_t stride = (int64_t)groups * GROUP;
  for (int half = 0; half < 2; ++half) {
    vec sums[R];
    for (int r = 0; r < R; ++r) sums[r] = zero();
    const uint8_t *tile = strip;
    const Code *codes = (const Code *)x.codes + row * stride;
    for (int g = 0; g < groups; ++g, tile += shape.bytes, codes += GROUP) {
      ints dots[R];
      group_dots<R>(tile + 32 * half, codes, stride, dots);
      const uint16_t *numbers = (const uint16_t *)(tile + shape.numbers) + LANES * half;
      vec scale = load_f16(numbers), minimum = load_f16(numbers + STRIP);
      if (shape.centre != 0) minimum = fma(splat(shape.centre), scale, minimum);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int64_t at = (int64_t)(row + r) * groups + g;
        sums[r] = fma(minimum, splat(x.sums[at]), sums[r]);
        sums[r] = fma(mul(scale, splat(x.scales[at])), floats(dots[r]), sums[r]);
      }
    }
    for (int r = 0; r < R; ++r) store(out + r * out_stride + LANES * half, sums[r]);
  }
}

using NarrowTile = void (*)(const uint8_t *, const Activations &, int, float *, int64_t);
constexpr int MOST_ROWS = 6;
template <class Code>
constexpr NarrowTile NARROW_TILES[] = {narrow_tile<Code, 1>, narrow_tile<Code, 2>, narrow_tile<Code, 3>,
                                       narrow_tile<Code, 4>, narrow_tile<Code, 5>, narrow_tile<Code, 6>};

void narrow_strip(const NarrowTile *tiles, const uint8_t *strip, const Activations &x, int row, int rows, float *out,
                  int64_t os) {
  for (; rows >= MOST_ROWS; rows -= MOST_ROWS, row += MOST_ROWS, out += MOST_ROWS * os)
    tiles[MOST_ROWS - 1](strip, x, row, out, os);
  if (rows) tiles[rows - 1](strip, x, row, out, os);
}

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
    ints whole[4];
    for (int i = 0; i < 4; ++i) whole[i] = nearest(mul(values[i], inverse));
    if (wide) store_codes((int16_t *)to.codes + group * GROUP, whole);
    else store_codes((int8_t *)to.codes + group * GROUP, whole);
    to.scales[group] = scale;
    to.sums[group] = scale * sum(floats(add(add(whole[0], whole[1]), add(whole[2], whole[3]))));
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
    case TP_INT8: return narrow_strip(NARROW_TILES<int16_t>, w, x, first_row, rows, out, os);
    default: return narrow_strip(NARROW_TILES<int8_t>, w, x, first_row, rows, out, os);
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
      const uint8_t *tile = w + (int64_t)(k / GROUP) * (wide ? INT8_TILE : INT4_TILE);
      int i = k % GROUP;
      int code = wide ? tile[i / 4 * 64 + o * 4 + i % 4] : tile[i % 16 / 4 * 64 + o * 4 + i % 4] >> (i / 16 * 4) & 15;
      const uint16_t *scales = (const uint16_t *)(tile + (wide ? 512 : 256));
      out[k] = f16(scales[o]) * code + f16(scales[STRIP + o]);
    }
  }
}
