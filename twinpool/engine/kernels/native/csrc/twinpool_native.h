// The C interface of the native engine: one call computes one step of a whole model.
//
// All memory that these structures point to belongs to the caller, who keeps it alive until tp_close.
#pragma once
#include <stdint.h>

#define TP_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// Number formats of a matrix, and of the cache (the first three).
enum { TP_FLOAT32 = 0, TP_BFLOAT16 = 1, TP_INT8 = 2, TP_INT4 = 3 };

// A matrix [outputs, inputs] in strips of 16 outputs; the last one is padded with zeros.
//
//   float32, bfloat16: for each input, 16 outputs side by side.
//   int8, int4: for each group of 32 inputs, a tile; a weight is scale * code + minimum, its code unsigned:
//
//     codes of 4 inputs of 16 outputs are a vector of 64 bytes, [output][input], and a tile has
//       int8  8 vectors, of inputs 0-3, 4-7, ..., 28-31
//       int4  4 vectors, of inputs 0-3, ..., 12-15 in the low halves of bytes, 16-19, ..., 28-31 in the high ones
//     then 16 scales and 16 minimums in float16.                              (int8: 576 bytes, int4: 320)
typedef struct {
  int32_t format;
  int32_t outputs;
  int32_t inputs;
  int32_t reserved;
  const void *strips;
} tp_matrix;

// One layer: x += attention(norm(x)); x += down(silu(gate(norm(x))) * up(norm(x))).
//
// qkv: queries, keys, values of all heads. qkv_bias: of its outputs, or null.
// gate_up: strips of gate and of up in turn; inner_size outputs of each, rounded up to whole strips.
// frequencies: of the rotary embedding in halves, [head_dim / 2].
typedef struct {
  const float *attention_norm;
  const float *mlp_norm;
  const float *qkv_bias;
  const float *frequencies;
  tp_matrix qkv;
  tp_matrix attention_output;
  tp_matrix gate_up;
  tp_matrix down;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t inner_size;
  float norm_eps;
} tp_layer;

// Who computes on this node, in memory that its workers share; slots null: nobody asks.
//
// slots: of one worker each: microseconds of CLOCK_MONOTONIC until which it has so many threads << 8 | their number.
// What a worker that died had is free a second later. own: this worker's slot. num_cpus: for all of them together.
// share: threads that this worker may use whatever others do.
typedef struct {
  int64_t *slots;
  int32_t num_slots;
  int32_t own;
  int32_t num_cpus;
  int32_t share;
} tp_cores;

// cache: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim] in cache_format; in int8, the head_dim codes
// of a row (code * scale) are followed by its scale in float32.
// layers_computed: raised by one after each layer, so that others see that a long step moves.
typedef struct {
  int32_t vocab_size;
  int32_t hidden_size;
  int32_t num_layers;
  int32_t head_dim;  // a multiple of 8
  int32_t block_size;
  int32_t cache_format;
  float norm_eps;
  int32_t reserved;
  const float *final_norm;
  tp_matrix embedding;
  tp_matrix output;
  const tp_layer *layers;
  void *cache;
  int64_t *layers_computed;
  tp_cores cores;
} tp_model;

// One sequence's share of a step: its rows follow those of the segment before; their positions end at
// context_tokens - 1. table: where its block ids begin in the step's table.
typedef struct {
  int32_t num_new;
  int32_t context_tokens;
  int32_t table;
} tp_segment;

// How one row's token is drawn: by twinpool/engine/draw.py, whose parameters these are.
typedef struct {
  uint64_t seed;
  uint64_t choice;
  uint64_t position;
  double temperature;  // 0: the likeliest token
  double top_p;
  double min_p;
  int32_t top_k;  // 0: all
  int32_t reserved;
} tp_draw;

typedef struct tp_engine tp_engine;

// Whether this library's instructions are this processor's.
TP_API int tp_usable(void);

// An engine that computes with up to num_threads threads, the caller's included; null where memory is short.
TP_API tp_engine *tp_open(const tp_model *model, int num_threads);
TP_API void tp_close(tp_engine *engine);

// Threads that the newest layer was computed with.
TP_API int tp_threads(const tp_engine *engine);

// Computes one step, and writes its keys and values into the cache. logits: [num_logits, vocab_size].
// Returns 0, or -1 where memory is short. One call at a time.
TP_API int tp_step(tp_engine *engine, int num_rows, const int32_t *token_ids, int num_segments,
            const tp_segment *segments, const int32_t *tables, int num_logits, const int32_t *logit_rows,
            float *logits);

// Draws a token for each row of logits [num_rows, vocab_size]; -1 for one without a number.
// Returns 0, or -1 where memory is short. One call at a time, steps included.
TP_API int tp_sample(tp_engine *engine, int num_rows, int vocab_size, const float *logits, const tp_draw *draws,
                     int32_t *tokens);

// out[row, :] = matrix x[row, :] for x [num_rows, inputs]: for tests of one product. Returns as tp_step.
TP_API int tp_product(const tp_matrix *matrix, int num_rows, const float *x, float *out, int num_threads);

#ifdef __cplusplus
}
#endif
