// Online softmax (Milakov & Gimelshein, "Online normalizer calculation for softmax"; Dao et al., "FlashAttention").
#include "attention.h"

#include <math.h>

#include "simd.h"

namespace {

constexpr int RUN = 16;  // tokens of a context that are taken at once

// Numbers d to d + 7 of a row.
inline vec cache8(const CacheLayer &cache, const char *row, int d) {
  if (cache.format == TP_BFLOAT16) return load_bf16((const uint16_t *)row + d);
  if (cache.format == TP_FLOAT32) return load((const float *)row + d);
  return mul(load_i8((const int8_t *)row + d), splat(*(const float *)(row + cache.head_dim)));
}

// As codes of -127 to 127 times the row's scale.
void write_codes(const float *x, int head_dim, char *row) {
  vec most = zero();
  for (int d = 0; d < head_dim; d += LANES) most = max(most, absolute(load(x + d)));
  float scale = greatest(most) / 127.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int d = 0; d < head_dim; d += LANES) store_i8((int8_t *)row + d, mul(load(x + d), splat(inverse)));
  *(float *)(row + head_dim) = scale;
}

void write_row(const CacheLayer &cache, const float *x, char *row) {
  if (cache.format == TP_INT8) return write_codes(x, cache.head_dim, row);
  for (int d = 0; d < cache.head_dim; d += LANES) {
    if (cache.format == TP_FLOAT32) store((float *)row + d, load(x + d));
    else store_bf16((uint16_t *)row + d, load(x + d));
  }
}

inline const char *keys_of(const CacheLayer &cache, const int32_t *block_table, int kv_head, int position) {
  return cache.base + block_table[position / cache.block_size] * cache.block_stride + kv_head * cache.head_stride +
         position % cache.block_size * cache.row_bytes;
}

// Keys of a run as [head_dim][16]; lanes of tokens past `tokens` repeat the last one, and are masked later.
void keys_across(const CacheLayer &cache, const char *keys, int tokens, float *across) {
  for (int half = 0; half < 2; ++half)
    for (int d = 0; d < cache.head_dim; d += LANES) {
      vec r[8];
      for (int i = 0; i < 8; ++i) {
        int token = half * 8 + i;
        r[i] = cache8(cache, keys + (token < tokens ? token : tokens - 1) * cache.row_bytes, d);
      }
      transpose8(r);
      for (int i = 0; i < 8; ++i) store(across + (d + i) * RUN + half * 8, r[i]);
    }
}

void values_as_floats(const CacheLayer &cache, const char *values, int tokens, float *out) {
  for (int token = 0; token < tokens; ++token, values += cache.row_bytes, out += cache.head_dim)
    for (int d = 0; d < cache.head_dim; d += LANES) store(out + d, cache8(cache, values, d));
}

// Asks for the memory of a run, which lies far from the one before: without, each row of it would be waited for.
inline void prefetch_run(const char *keys, int64_t value_bytes, int64_t run_bytes) {
  for (int64_t at = 0; at < run_bytes; at += 64) {
    __builtin_prefetch(keys + at);
    __builtin_prefetch(keys + value_bytes + at);
  }
}

template <int R>
void scores(const float *q, const float *across, int head_dim, float *out) {
  vec sums[R][2];
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = zero();
  for (int d = 0; d < head_dim; ++d) {
    vec low = load(across + d * RUN), high = load(across + d * RUN + LANES);
    for (int r = 0; r < R; ++r) {
      vec value = splat(q[r * head_dim + d]);
      sums[r][0] = fma(value, low, sums[r][0]);
      sums[r][1] = fma(value, high, sums[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(out + r * RUN, sums[r][0]);
    store(out + r * RUN + LANES, sums[r][1]);
  }
}

void all_scores(const float *q, const float *across, int head_dim, int rows, float *out) {
  for (; rows >= 6; rows -= 6, q += 6 * head_dim, out += 6 * RUN) scores<6>(q, across, head_dim, out);
  switch (rows) {
    case 5: return scores<5>(q, across, head_dim, out);
    case 4: return scores<4>(q, across, head_dim, out);
    case 3: return scores<3>(q, across, head_dim, out);
    case 2: return scores<2>(q, across, head_dim, out);
    case 1: return scores<1>(q, across, head_dim, out);
    default: return;
  }
}

// mixed = mixed * fade + weights * values, N vectors of a head at a time.
template <int N>
void mix(const float *weights, const float *values, int tokens, int head_dim, float fade, float *mixed) {
  vec sums[N];
  for (int i = 0; i < N; ++i) sums[i] = mul(load(mixed + i * LANES), splat(fade));
  for (int t = 0; t < tokens; ++t) {
    vec weight = splat(weights[t]);
    for (int i = 0; i < N; ++i) sums[i] = fma(weight, load(values + (int64_t)t * head_dim + i * LANES), sums[i]);
  }
  for (int i = 0; i < N; ++i) store(mixed + i * LANES, sums[i]);
}

}  // namespace

void write_token(const CacheLayer &cache, int block, int slot, int kv_head, const float *key, const float *value) {
  char *row = cache.base + block * cache.block_stride + kv_head * cache.head_stride + slot * cache.row_bytes;
  write_row(cache, key, row);
  write_row(cache, value, row + cache.value_offset);
}

int64_t cache_row_bytes(int format, int head_dim) {
  if (format == TP_INT8) return head_dim + sizeof(float);
  return (int64_t)head_dim * (format == TP_FLOAT32 ? 4 : 2);
}

int64_t attention_scratch(int rows, int head_dim) {
  return ((int64_t)rows * (2 * head_dim + RUN + 2) + 2 * (int64_t)RUN * head_dim) * sizeof(float);
}

void attend_tile(const CacheLayer &cache, const int32_t *block_table, int kv_head, int num_tokens, int group,
                 int first_position, const float *q, int64_t q_stride, float *out, int64_t out_stride, void *scratch) {
  const int head_dim = cache.head_dim, rows = num_tokens * group;
  float *scaled = (float *)scratch, *mixed = scaled + (int64_t)rows * head_dim;
  float *weights = mixed + (int64_t)rows * head_dim, *most = weights + (int64_t)rows * RUN, *total = most + rows;
  float *across = total + rows, *values = across + RUN * head_dim;
  const float scale = 1.0f / sqrtf((float)head_dim);
  for (int r = 0; r < rows; ++r) {
    const float *from = q + r / group * q_stride + (int64_t)(r % group) * head_dim;
    for (int d = 0; d < head_dim; d += LANES) {
      store(scaled + (int64_t)r * head_dim + d, mul(load(from + d), splat(scale)));
      store(mixed + (int64_t)r * head_dim + d, zero());
    }
    most[r] = -INFINITY;
    total[r] = 0;
  }
  const int context = first_position + num_tokens;
  for (int start = 0; start < context;) {
    int slot = start % cache.block_size, tokens = cache.block_size - slot;
    if (tokens > RUN) tokens = RUN;
    int seen = tokens < context - start ? tokens : context - start;  // the rest holds nothing yet
    const char *keys = keys_of(cache, block_table, kv_head, start);
    if (start + tokens < context)
      prefetch_run(keys_of(cache, block_table, kv_head, start + tokens), cache.value_offset, tokens * cache.row_bytes);
    keys_across(cache, keys, seen, across);
    values_as_floats(cache, keys + cache.value_offset, seen, values);
    // Tokens before `start` see nothing of this run.
    int skipped = start > first_position ? (start - first_position) * group : 0;
    all_scores(scaled + (int64_t)skipped * head_dim, across, head_dim, rows - skipped, weights + skipped * RUN);
    for (int r = skipped; r < rows; ++r) {
      int own = first_position + r / group + 1 - start;
      own = own < seen ? own : seen;
      vec low = first_lanes(load(weights + r * RUN), own, -INFINITY);
      vec high = first_lanes(load(weights + r * RUN + LANES), own - LANES, -INFINITY);
      float top = greatest(max(low, high));
      top = top > most[r] ? top : most[r];
      low = exponential(sub(low, splat(top)));
      high = exponential(sub(high, splat(top)));
      float fade = most[r] == -INFINITY ? 0.0f : expf(most[r] - top);
      most[r] = top;
      total[r] = total[r] * fade + sum(add(low, high));
      store(weights + r * RUN, low);
      store(weights + r * RUN + LANES, high);
      float *row = mixed + (int64_t)r * head_dim;
      int d = 0;
      for (; d + 8 * LANES <= head_dim; d += 8 * LANES) mix<8>(weights + r * RUN, values + d, own, head_dim, fade, row + d);
      for (; d < head_dim; d += LANES) mix<1>(weights + r * RUN, values + d, own, head_dim, fade, row + d);
    }
    start += tokens;
  }
  for (int r = 0; r < rows; ++r) {
    float *to = out + r / group * out_stride + (int64_t)(r % group) * head_dim;
    vec share = splat(1.0f / total[r]);
    for (int d = 0; d < head_dim; d += LANES) store(to + d, mul(load(mixed + (int64_t)r * head_dim + d), share));
  }
}
