// Says what the native kernels compute from inputs of its own, so that builds for two processors can be compared:
// lines of a name and numbers, floats in hexadecimal.
#include <stdio.h>
#include <stdlib.h>

#include "dots.h"
#include "twinpool_native.h"

namespace {

constexpr int GROUP = 32, STRIP = 16;
constexpr int FORMATS[] = {TP_FLOAT32, TP_BFLOAT16, TP_INT8, TP_INT4};

uint32_t state = 1;

uint32_t random_bits() {
  state = state * 1664525 + 1013904223;
  return state >> 8;
}

float random_float() { return (int32_t)(random_bits() - (1 << 23)) * 0x1p-23f; }  // of [-1, 1)

template <class T>
T *memory(int64_t n) {
  return static_cast<T *>(aligned_alloc(64, (n * sizeof(T) + 63) / 64 * 64));
}

const float *random_floats(int64_t n, float scale = 1, float offset = 0) {
  float *to = memory<float>(n);
  for (int64_t i = 0; i < n; ++i) to[i] = random_float() * scale + offset;
  return to;
}

uint16_t upper_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits >> 16;
}

tp_matrix random_matrix(int format, int outputs, int inputs) {
  int strips = (outputs + STRIP - 1) / STRIP, groups = (inputs + GROUP - 1) / GROUP;
  tp_matrix m{format, outputs, inputs, 0, nullptr};
  int64_t count = (int64_t)strips * STRIP * inputs;
  if (format == TP_FLOAT32) {
    m.strips = random_floats(count);
  } else if (format == TP_BFLOAT16) {
    uint16_t *to = memory<uint16_t>(count);
    for (int64_t i = 0; i < count; ++i) to[i] = upper_half(random_float());
    m.strips = to;
  } else {
    int codes = format == TP_INT8 ? 512 : 256;
    uint8_t *to = memory<uint8_t>((int64_t)strips * groups * (codes + 64));
    m.strips = to;
    for (int tile = 0; tile < strips * groups; ++tile) {
      for (int i = 0; i < codes; ++i) *to++ = random_bits() >> 8;
      // Scales are float16 of 2^-8 to 2^-6, minimums about minus their codes' middle.
      uint16_t numbers[2 * STRIP];
      for (int i = 0; i < STRIP; ++i) {
        numbers[i] = 0x1c00 + (random_bits() >> 8 & 0x7ff);
        numbers[STRIP + i] = 0x8000 + numbers[i] + ((format == TP_INT8 ? 7 : 3) << 10) + (random_bits() >> 8 & 0x1f);
      }
      memcpy(to, numbers, sizeof numbers);
      to += sizeof numbers;
    }
  }
  return m;
}

void say(const char *name, int a, int b, const float *x, int64_t n) {
  printf("%s-%d-%d", name, a, b);
  for (int64_t i = 0; i < n; ++i) printf(" %a", x[i]);
  printf("\n");
}

// Exact sums of a group, of random codes and of the greatest ones.
template <class Code, int R>
void say_dots(int most, int bytes) {
  alignas(64) uint8_t tile[512];
  Code x[R * GROUP];
  for (int extreme = 0; extreme < 2; ++extreme) {
    for (int i = 0; i < bytes; ++i) tile[i] = extreme ? i / 64 % 2 * 0xff : random_bits() >> 8;
    for (int r = 0; r < R; ++r) {
      ints whole[4];
      float codes[GROUP];
      for (float &code : codes) code = extreme ? (r % 2 ? most : -most) : (int)(random_bits() % (2 * most + 1)) - most;
      for (int i = 0; i < 4; ++i) whole[i] = nearest(load(codes + LANES * i));
      store_codes(x + r * GROUP, whole);
    }
    ints dots[R];
    group_dots<R>(tile, x, GROUP, dots);
    printf("dots-%d-%d-%d", (int)sizeof(Code), R, extreme);
    for (int r = 0; r < R; ++r) {
      int32_t sums[LANES];
      memcpy(sums, &dots[r], sizeof sums);
      for (int sum : sums) printf(" %d", sum);
    }
    printf("\n");
  }
}

void say_products() {
  constexpr int ROWS = 7, SHAPES[][2] = {{16, 32}, {1, 1}, {17, 33}, {100, 576}};
  for (int format : FORMATS)
    for (auto [outputs, inputs] : SHAPES) {
      tp_matrix m = random_matrix(format, outputs, inputs);
      float *out = memory<float>(ROWS * outputs);
      if (tp_product(&m, ROWS, random_floats(ROWS * inputs), out, 2)) exit(1);
      say("product", format, inputs, out, ROWS * outputs);
    }
}

// Two sequences are read in one step, then each gets a token more; the last rows' tokens are drawn.
void say_steps(int format, int cache_format) {
  constexpr int LAYERS = 2, HIDDEN = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, INNER = 80, VOCAB = 50, BLOCK = 20, BLOCKS = 6;
  tp_layer layers[LAYERS];
  const float frequencies[HEAD_DIM / 2] = {1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125};
  for (tp_layer &layer : layers) {
    int qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
    layer = {random_floats(HIDDEN, 0.1, 1), random_floats(HIDDEN, 0.1, 1), random_floats(qkv), frequencies,
             random_matrix(format, qkv, HIDDEN), random_matrix(format, HIDDEN, HEADS * HEAD_DIM),
             random_matrix(format, 2 * INNER, HIDDEN), random_matrix(format, HIDDEN, INNER), HEADS, KV_HEADS, INNER, 1e-5};
  }
  int64_t layers_computed = 0;
  char *cache = memory<char>(BLOCKS * LAYERS * 2 * KV_HEADS * BLOCK * HEAD_DIM * 4);
  tp_model model{VOCAB, HIDDEN, LAYERS, HEAD_DIM, BLOCK, cache_format, 1e-5, 0, random_floats(HIDDEN, 0.1, 1),
                 random_matrix(format, VOCAB, HIDDEN), random_matrix(format, VOCAB, HIDDEN), layers, cache, &layers_computed, {}};
  tp_engine *engine = tp_open(&model, 2);
  const int32_t tables[] = {4, 0, 3, 5, 1}, lasts[] = {46, 52}, both[] = {0, 1};
  int32_t tokens[53], drawn[2];
  for (int32_t &token : tokens) token = random_bits() % VOCAB;
  const tp_segment prompts[] = {{47, 47, 0}, {6, 6, 3}}, next[] = {{1, 48, 0}, {1, 7, 3}};
  const tp_draw draws[] = {{1, 0, 47, 0.0, 1, 0, 0, 0}, {2, 0, 6, 1.0, 0.9, 0, 8, 0}};
  float logits[2 * VOCAB];
  if (!engine || tp_step(engine, 53, tokens, 2, prompts, tables, 2, lasts, logits)) exit(1);
  say("read", format, cache_format, logits, 2 * VOCAB);
  if (tp_step(engine, 2, tokens, 2, next, tables, 2, both, logits)) exit(1);
  say("next", format, cache_format, logits, 2 * VOCAB);
  if (tp_sample(engine, 2, VOCAB, logits, draws, drawn)) exit(1);
  printf("drawn-%d-%d %d %d\n", format, cache_format, drawn[0], drawn[1]);
  tp_close(engine);
}

}  // namespace

int main() {
  if (!tp_usable()) return printf("unusable\n"), 0;
  say_dots<int8_t, 1>(127, 256), say_dots<int8_t, 6>(127, 256);
  say_dots<int16_t, 1>(32767, 512), say_dots<int16_t, 6>(32767, 512);
  say_products();
  for (int format : FORMATS)
    for (int cache_format = TP_FLOAT32; cache_format <= TP_INT8; ++cache_format) say_steps(format, cache_format);
  return 0;
}
