// Causal attention over a paged cache.
#pragma once
#include "twinpool_native.h"

// One layer's part of the cache, in bytes. block b's keys of a head: base + b * block_stride + head * head_stride; its
// values lie value_offset after its keys. A head's tokens are rows of head_dim numbers, in int8 with a scale behind.
struct CacheLayer {
  char *base;
  int format;
  int64_t block_stride, head_stride, value_offset, row_bytes;
  int block_size, head_dim;
};

int64_t cache_row_bytes(int format, int head_dim);

// Writes one token's key and value of one head.
void write_token(const CacheLayer &cache, int block, int slot, int kv_head, const float *key, const float *value);

// Bytes of scratch that attend_tile needs for so many query rows.
int64_t attention_scratch(int rows, int head_dim);

// Queries of consecutive tokens, each in `group` heads that share one of keys and values, over their context.
//
// q, out: row t * group + g lies at t * token_stride + g * head_dim. positions of the tokens: first_position on.
// Tokens of the context are taken in runs of at most 16 from block to block, each row's in the same order with
// the same operations, whatever rows it is computed with: its bits depend on its own inputs alone.
void attend_tile(const CacheLayer &cache, const int32_t *block_table, int kv_head, int num_tokens, int group,
                 int first_position, const float *q, int64_t q_stride, float *out, int64_t out_stride, void *scratch);
