// One step of a whole model: rows of all segments, layer after layer.
//
// A step's memory, for n rows (grown when a step needs more, never shrunk):
//
//   hidden     [n, hidden]                 the residual stream
//   normed     [n, hidden]                 what qkv, gate_up and output take
//   mixed      [n, widest]                 what attention_output and down take: attended values, gated features
//   codes, scales, sums                    either again, for int8 and int4 products
//   qkv        [n, (heads + 2 kv_heads) * head_dim]
//   turns      [n, head_dim]               cosines, then sines, of each row's position
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "attention.h"
#include "matrix.h"
#include "sampling.h"
#include "threads.h"

namespace {

constexpr int TILE_ROWS = 48;      // query rows that share one reading of keys and values
constexpr int FEW_ROWS = 8;        // rows whose norms cost less than waking a thread
constexpr int PRODUCT_ROWS = 192;  // rows whose activations stay in the second cache

int least(int a, int b) { return a < b ? a : b; }

int64_t microseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

struct Row {
  int position, block, slot;
};

struct Tile {  // consecutive tokens of a segment, which attention takes at once
  int first_row, num_tokens, first_position, table;
};

}  // namespace

struct tp_engine {
  tp_model model;
  Team *team;
  int widest, qkv_size;  // inputs of any product, and outputs of qkv, over all layers

  int rows_capacity, tiles_capacity;
  float *hidden, *normed, *mixed, *qkv, *turns, *scales, *sums;
  void *codes;
  Row *rows;
  Tile *tiles;
  char *scratch;          // one part for each thread
  int64_t scratch_bytes;  // of a part
  char *draws;            // the same for drawing tokens
  int64_t draw_bytes;

  // Whether the others of the team help: over a while of computing, how long it took and how much of it was waiting.
  int64_t watched_us, waited_us, alone_until_us, alone_us;

  int num_rows, num_tiles;
  const int32_t *tables;
  const float *frequencies;  // that `turns` are of
};

namespace {

template <class T>
bool allocate(T *&p, int64_t n) {
  free(p);
  p = static_cast<T *>(aligned_alloc(64, (n * sizeof(T) + 127) / 64 * 64));
  return p != nullptr;
}

bool reserve(tp_engine *e, int rows, int tiles) {
  if (rows > e->rows_capacity) {
    int n = round_up(rows, 64), groups = num_groups(e->widest);
    e->rows_capacity = 0;
    if (!allocate(e->hidden, (int64_t)n * e->model.hidden_size) || !allocate(e->mixed, (int64_t)n * e->widest) ||
        !allocate(e->normed, (int64_t)n * e->model.hidden_size) || !allocate(e->qkv, (int64_t)n * e->qkv_size) || !allocate(e->turns, (int64_t)n * e->model.head_dim) ||
        !allocate(*(int16_t **)&e->codes, (int64_t)n * groups * GROUP) || !allocate(e->scales, (int64_t)n * groups) ||
        !allocate(e->sums, (int64_t)n * groups) || !allocate(e->rows, n))
      return false;
    e->rows_capacity = n;
  }
  if (tiles > e->tiles_capacity) {
    e->tiles_capacity = 0;
    if (!allocate(e->tiles, tiles)) return false;
    e->tiles_capacity = tiles;
  }
  return true;
}

// ---- products

// What becomes of a strip of 16 outputs of some rows.
enum class Then { STORE, ADD };

struct Product {
  tp_engine *e;
  const tp_matrix *matrix;
  Activations x;
  int num_rows;
  float *out;  // [num_rows, out_size]
  int out_size;
  const float *bias;
  Then then;
};

inline vec result(const Product &p, vec sum, vec before, int strip, int o) {
  if (p.bias) sum = add(sum, load(p.bias + strip * STRIP + o));
  return p.then == Then::ADD ? add(sum, before) : sum;
}

void product_part(void *job, int first, int end, int) {
  const Product &p = *static_cast<Product *>(job);
  float sums[TILE_ROWS][STRIP];
  for (int from = 0; from < p.num_rows; from += PRODUCT_ROWS)
    for (int strip = first; strip < end; ++strip) {
      int wide = least(STRIP, p.matrix->outputs - strip * STRIP), until = least(p.num_rows, from + PRODUCT_ROWS);
      for (int row = from; row < until; row += TILE_ROWS) {
        int rows = least(TILE_ROWS, until - row);
        strip_product(*p.matrix, strip, p.x, row, row + rows, &sums[0][0], STRIP);
        for (int r = 0; r < rows; ++r) {
          float *to = p.out + (int64_t)(row + r) * p.out_size + strip * STRIP;
          if (wide == STRIP)
            for (int o = 0; o < STRIP; o += LANES) store(to + o, result(p, load(&sums[r][o]), load(to + o), strip, o));
          else
            for (int o = 0; o < wide; ++o)
              to[o] = sums[r][o] + (p.bias ? p.bias[strip * STRIP + o] : 0.0f) + (p.then == Then::ADD ? to[o] : 0.0f);
        }
      }
    }
}

// Strips 2 i and 2 i + 1 are gate and up of the same 16 features: out = silu(gate) * up.
void gated_part(void *job, int first, int end, int) {
  const Product &p = *static_cast<Product *>(job);
  float gate[TILE_ROWS][STRIP], up[TILE_ROWS][STRIP];
  for (int from = 0; from < p.num_rows; from += PRODUCT_ROWS)
    for (int pair = first; pair < end; ++pair) {
      int wide = least(STRIP, p.out_size - pair * STRIP), until = least(p.num_rows, from + PRODUCT_ROWS);
      for (int row = from; row < until; row += TILE_ROWS) {
        int rows = least(TILE_ROWS, until - row);
        strip_product(*p.matrix, 2 * pair, p.x, row, row + rows, &gate[0][0], STRIP);
        strip_product(*p.matrix, 2 * pair + 1, p.x, row, row + rows, &up[0][0], STRIP);
        for (int r = 0; r < rows; ++r) {
          for (int o = 0; o < STRIP; o += LANES) store(&gate[r][o], mul(silu(load(&gate[r][o])), load(&up[r][o])));
          memcpy(p.out + (int64_t)(row + r) * p.out_size + pair * STRIP, gate[r], wide * sizeof(float));
        }
      }
    }
}

Activations activations(const tp_engine *e, const float *rows, int inputs) {
  return {rows, inputs, e->codes, e->scales, e->sums, num_groups(inputs)};
}

// Parts small enough that both threads end at about the same time, and large enough that claims cost nothing.
int grain_of(const tp_engine *e, int parts) {
  int size = team_active(e->team);
  return size == 1 ? parts : (parts + size * 8 - 1) / (size * 8);
}

void run_product(tp_engine *e, const tp_matrix &m, const float *x, int num_rows, float *out, int out_size,
                 const float *bias, Then then) {
  Product p{e, &m, activations(e, x, m.inputs), num_rows, out, out_size, bias, then};
  int parts = num_strips(m.outputs);
  team_run(e->team, parts, grain_of(e, parts), product_part, &p);
}

// ---- rows: norms, rotation, quantising

struct RowJob {
  tp_engine *e;
  const tp_layer *layer;
  int layer_number;
  const float *from;
  float *to;
  const float *weight;
  float eps;
  int size;
  int weights;  // the format of those that the rows are to be multiplied with
};

void quantise(const RowJob &j, int row) {
  const float *x = j.to + (int64_t)row * j.size;
  quantise_row(j.weights, x, j.size, activations(j.e, x, j.size), row);
}

void norm_part(void *job, int first, int end, int) {
  const RowJob &j = *static_cast<RowJob *>(job);
  for (int row = first; row < end; ++row) {
    const float *x = j.from + (int64_t)row * j.size;
    float *to = j.to + (int64_t)row * j.size;
    vec squares = zero();
    int i = 0;
    float rest = 0;
    for (; i + LANES <= j.size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
    for (; i < j.size; ++i) rest += x[i] * x[i];
    float factor = 1.0f / sqrtf((sum(squares) + rest) / j.size + j.eps);
    for (i = 0; i < j.size; ++i) to[i] = x[i] * factor * j.weight[i];
    if (j.weights == TP_INT8 || j.weights == TP_INT4) quantise(j, row);
  }
}

void quantise_part(void *job, int first, int end, int) {
  for (int row = first; row < end; ++row) quantise(*static_cast<RowJob *>(job), row);
}

void run_rows(tp_engine *e, int num_rows, Part part, RowJob *job) {
  team_run(e->team, num_rows, num_rows < FEW_ROWS ? num_rows : grain_of(e, num_rows), part, job);
}

void run_norm(tp_engine *e, const float *from, int num_rows, const float *weight, float eps, const tp_matrix &next) {
  RowJob job{e, nullptr, 0, from, e->normed, weight, eps, e->model.hidden_size, next.format};
  run_rows(e, num_rows, norm_part, &job);
}

void run_quantise(tp_engine *e, int num_rows, int size, const tp_matrix &next) {
  if (!is_narrow(next)) return;
  RowJob job{e, nullptr, 0, nullptr, e->mixed, nullptr, 0, size, next.format};
  run_rows(e, num_rows, quantise_part, &job);
}

void turn(tp_engine *e, const float *frequencies) {
  if (e->frequencies == frequencies) return;
  int half = e->model.head_dim / 2;
  for (int row = 0; row < e->num_rows; ++row) {
    float *turns = e->turns + (int64_t)row * 2 * half;
    for (int i = 0; i < half; ++i) {
      float angle = (float)e->rows[row].position * frequencies[i];
      turns[i] = cosf(angle);
      turns[half + i] = sinf(angle);
    }
  }
  e->frequencies = frequencies;
}

CacheLayer cache_layer(const tp_engine *e, int number) {
  const tp_model &m = e->model;
  int64_t row = cache_row_bytes(m.cache_format, m.head_dim), head = m.block_size * row, kv_heads = m.layers[0].num_kv_heads;
  int64_t layer = 2 * kv_heads * head;
  char *base = static_cast<char *>(m.cache) + number * layer;
  return {base, m.cache_format, layer * m.num_layers, head, kv_heads * head, row, m.block_size, m.head_dim};
}

// Rotates queries and keys, and writes keys and values into the cache.
void rotate_part(void *job, int first, int end, int) {
  const RowJob &j = *static_cast<RowJob *>(job);
  const tp_engine *e = j.e;
  int head_dim = e->model.head_dim, half = head_dim / 2, heads = j.layer->num_heads, kv_heads = j.layer->num_kv_heads;
  CacheLayer cache = cache_layer(e, j.layer_number);
  for (int row = first; row < end; ++row) {
    float *qkv = e->qkv + (int64_t)row * e->qkv_size;
    const float *cosines = e->turns + (int64_t)row * head_dim, *sines = cosines + half;
    for (int head = 0; head < heads + kv_heads; ++head) {
      float *x = qkv + head * head_dim, *y = x + half;
      for (int i = 0; i < half; ++i) {
        float a = x[i], b = y[i];
        x[i] = a * cosines[i] - b * sines[i];
        y[i] = b * cosines[i] + a * sines[i];
      }
    }
    const float *keys = qkv + heads * head_dim, *values = keys + kv_heads * head_dim;
    for (int head = 0; head < kv_heads; ++head)
      write_token(cache, e->rows[row].block, e->rows[row].slot, head, keys + head * head_dim, values + head * head_dim);
  }
}

// ---- attention

void attend_part(void *job, int first, int end, int thread) {
  const RowJob &j = *static_cast<RowJob *>(job);
  const tp_engine *e = j.e;
  int head_dim = e->model.head_dim, kv_heads = j.layer->num_kv_heads, group = j.layer->num_heads / kv_heads;
  CacheLayer cache = cache_layer(e, j.layer_number);
  for (int part = first; part < end; ++part) {
    const Tile &tile = e->tiles[part / kv_heads];
    int kv_head = part % kv_heads, q_head = kv_head * group;
    attend_tile(cache, e->tables + tile.table, kv_head, tile.num_tokens, group, tile.first_position,
                e->qkv + (int64_t)tile.first_row * e->qkv_size + q_head * head_dim, e->qkv_size,
                e->mixed + (int64_t)tile.first_row * j.size + q_head * head_dim, j.size,
                e->scratch + thread * e->scratch_bytes);
  }
}

// ---- the step

int tile_tokens(const tp_engine *e) {
  int group = e->model.layers[0].num_heads / e->model.layers[0].num_kv_heads;
  return group < TILE_ROWS ? TILE_ROWS / group : 1;
}

// Rows and tiles of a step. The longest contexts come first, so that threads end together.
void lay_out(tp_engine *e, int num_segments, const tp_segment *segments, const int32_t *tables) {
  int row = 0, block_size = e->model.block_size, most = tile_tokens(e);
  e->num_tiles = 0;
  for (int s = 0; s < num_segments; ++s) {
    const tp_segment &segment = segments[s];
    int start = segment.context_tokens - segment.num_new;
    for (int i = 0; i < segment.num_new; i += most)
      e->tiles[e->num_tiles++] = {row + i, least(most, segment.num_new - i), start + i, segment.table};
    for (int i = 0; i < segment.num_new; ++i, ++row)
      e->rows[row] = {start + i, tables[segment.table + (start + i) / block_size], (start + i) % block_size};
  }
  e->num_rows = row;
  e->tables = tables;
  e->frequencies = nullptr;
}

// Keeps, of the rows, those whose logits are wanted: nobody reads what else the last layer would make of them.
int keep_rows(tp_engine *e, int attended, int num_wanted, const int32_t *wanted) {
  int hidden = e->model.hidden_size;
  for (int i = 0; i < num_wanted; ++i) {
    memmove(e->hidden + (int64_t)i * hidden, e->hidden + (int64_t)wanted[i] * hidden, hidden * sizeof(float));
    memmove(e->mixed + (int64_t)i * attended, e->mixed + (int64_t)wanted[i] * attended, attended * sizeof(float));
  }
  return num_wanted;
}

// Takes what other workers leave, and at least this worker's share; but one thread while others were no help.
void share_cores(tp_engine *e) {
  constexpr int64_t LEASE_US = 1000000;
  const tp_cores &cores = e->model.cores;
  int64_t now = microseconds(), taken = 0;
  bool alone = now < e->alone_until_us;
  if (!cores.slots) return team_limit(e->team, alone ? 1 : team_size(e->team));
  for (int i = 0; i < cores.num_slots; ++i) {
    int64_t slot = __atomic_load_n(&cores.slots[i], __ATOMIC_RELAXED);
    if (i != cores.own && slot >> 8 > now) taken += slot & 0xff;
  }
  int threads = cores.num_cpus - (int)taken;
  threads = alone ? 1 : threads > cores.share ? threads : cores.share;
  team_limit(e->team, least(threads, team_size(e->team)));
  __atomic_store_n(&cores.slots[cores.own], (now + LEASE_US) << 8 | team_active(e->team), __ATOMIC_RELAXED);
}

// What it has stays its own until its next step, if that comes soon: a neighbour that took it for that moment would keep
// it for a while.
void leave_cores(tp_engine *e) {
  constexpr int64_t PAUSE_US = 3000;
  const tp_cores &cores = e->model.cores;
  if (!cores.slots) return;
  __atomic_store_n(&cores.slots[cores.own], (microseconds() + PAUSE_US) << 8 | team_active(e->team), __ATOMIC_RELAXED);
}

// A thread whose processor somebody else has is waited for again and again, and then one thread is faster than two. It
// is tried again after a while, which doubles as long as nothing has changed.
void watch_helpers(tp_engine *e, int64_t took_us, int64_t waited_us) {
  constexpr int64_t WATCHED_US = 50000, ALONE_US = 100000, MOST_ALONE_US = 1600000;
  if (team_active(e->team) == 1) return;
  e->watched_us += took_us;
  e->waited_us += waited_us;
  if (e->watched_us < WATCHED_US) return;
  if (e->waited_us * 10 > e->watched_us * 3) {
    e->alone_us = e->alone_us ? least(2 * e->alone_us, MOST_ALONE_US) : ALONE_US;
    e->alone_until_us = microseconds() + e->alone_us;
  } else {
    e->alone_us = 0;
  }
  e->watched_us = e->waited_us = 0;
}

void compute_layer(tp_engine *e, int number, int num_wanted, const int32_t *wanted) {
  const tp_layer &layer = e->model.layers[number];
  int hidden = e->model.hidden_size, n = e->num_rows, attended = layer.num_heads * e->model.head_dim;
  RowJob rows{e, &layer, number, nullptr, nullptr, nullptr, 0, attended, TP_FLOAT32};

  int64_t started = microseconds(), waited = team_waited_ns(e->team);
  // Before each product: that of a chunk takes milliseconds.
  share_cores(e);
  run_norm(e, e->hidden, n, layer.attention_norm, layer.norm_eps, layer.qkv);
  run_product(e, layer.qkv, e->normed, n, e->qkv, e->qkv_size, layer.qkv_bias, Then::STORE);
  turn(e, layer.frequencies);
  run_rows(e, n, rotate_part, &rows);
  team_run(e->team, e->num_tiles * layer.num_kv_heads, 1, attend_part, &rows);
  if (number == e->model.num_layers - 1) n = keep_rows(e, attended, num_wanted, wanted);
  run_quantise(e, n, attended, layer.attention_output);
  share_cores(e);
  run_product(e, layer.attention_output, e->mixed, n, e->hidden, hidden, nullptr, Then::ADD);

  run_norm(e, e->hidden, n, layer.mlp_norm, layer.norm_eps, layer.gate_up);
  Product gated{e, &layer.gate_up, activations(e, e->normed, hidden), n, e->mixed, layer.inner_size, nullptr, Then::STORE};
  int pairs = num_strips(layer.inner_size);
  share_cores(e);
  team_run(e->team, pairs, grain_of(e, pairs), gated_part, &gated);
  run_quantise(e, n, layer.inner_size, layer.down);
  share_cores(e);
  run_product(e, layer.down, e->mixed, n, e->hidden, hidden, nullptr, Then::ADD);
  watch_helpers(e, microseconds() - started, (team_waited_ns(e->team) - waited) / 1000);
  __atomic_fetch_add(e->model.layers_computed, 1, __ATOMIC_RELAXED);
}

struct Draws {
  const tp_engine *e;
  int vocab_size;
  const float *logits;
  const tp_draw *draws;
  int32_t *tokens;
};

void draw_part(void *what, int first, int end, int thread) {
  const Draws &j = *static_cast<const Draws *>(what);
  for (int row = first; row < end; ++row)
    j.tokens[row] = draw_token(j.draws[row], j.logits + (int64_t)row * j.vocab_size, j.vocab_size,
                               j.e->draws + j.e->draw_bytes * thread);
}

}  // namespace

tp_engine *tp_open(const tp_model *model, int num_threads) {
  tp_engine *e = static_cast<tp_engine *>(calloc(1, sizeof(tp_engine)));
  if (!e) return nullptr;
  e->model = *model;
  for (int i = 0; i < model->num_layers; ++i) {
    const tp_layer &layer = model->layers[i];
    int attended = layer.num_heads * model->head_dim;
    if (layer.qkv.outputs > e->qkv_size) e->qkv_size = layer.qkv.outputs;
    if (attended > e->widest) e->widest = attended;
    if (layer.inner_size > e->widest) e->widest = layer.inner_size;
  }
  if (model->hidden_size > e->widest) e->widest = model->hidden_size;
  e->team = team_open(num_threads);
  if (e->team) {
    int group = model->layers[0].num_heads / model->layers[0].num_kv_heads;
    int rows = TILE_ROWS > group ? TILE_ROWS : group;
    e->scratch_bytes = (attention_scratch(rows, model->head_dim) + 63) / 64 * 64;
    if (allocate(e->scratch, e->scratch_bytes * team_size(e->team)) && reserve(e, 1, 1)) return e;
  }
  tp_close(e);
  return nullptr;
}

void tp_close(tp_engine *e) {
  if (e->team) team_close(e->team);
  void *memory[] = {e->hidden, e->normed, e->mixed, e->qkv, e->turns, e->scales, e->sums, e->codes, e->rows, e->tiles, e->scratch, e->draws};
  for (void *each : memory) free(each);
  free(e);
}

int tp_threads(const tp_engine *e) { return team_active(e->team); }

int tp_step(tp_engine *e, int num_rows, const int32_t *token_ids, int num_segments, const tp_segment *segments,
            const int32_t *tables, int num_logits, const int32_t *logit_rows, float *logits) {
  const tp_model &m = e->model;
  int tiles = 0, most = tile_tokens(e);
  for (int s = 0; s < num_segments; ++s) tiles += (segments[s].num_new + most - 1) / most;
  if (!reserve(e, num_rows, tiles)) return -1;
  lay_out(e, num_segments, segments, tables);
  for (int row = 0; row < num_rows; ++row) matrix_row(m.embedding, token_ids[row], e->hidden + (int64_t)row * m.hidden_size);
  for (int layer = 0; layer < m.num_layers; ++layer) compute_layer(e, layer, num_logits, logit_rows);
  run_norm(e, e->hidden, num_logits, m.final_norm, m.norm_eps, m.output);
  run_product(e, m.output, e->normed, num_logits, logits, m.vocab_size, nullptr, Then::STORE);
  leave_cores(e);
  return 0;
}

int tp_sample(tp_engine *e, int num_rows, int vocab_size, const float *logits, const tp_draw *draws, int32_t *tokens) {
  int64_t bytes = draw_scratch(vocab_size);
  if (bytes > e->draw_bytes) {
    e->draw_bytes = 0;
    if (!allocate(e->draws, bytes * team_size(e->team))) return -1;
    e->draw_bytes = bytes;
  }
  Draws job{e, vocab_size, logits, draws, tokens};
  share_cores(e);
  team_run(e->team, num_rows, 1, draw_part, &job);
  leave_cores(e);
  return 0;
}

int tp_product(const tp_matrix *matrix, int num_rows, const float *x, float *out, int num_threads) {
  tp_engine e{};
  int groups = num_groups(matrix->inputs), failed = -1;
  e.team = team_open(num_threads);
  if (e.team && allocate(*(int16_t **)&e.codes, (int64_t)num_rows * groups * GROUP) &&
      allocate(e.scales, (int64_t)num_rows * groups) && allocate(e.sums, (int64_t)num_rows * groups)) {
    Activations to = activations(&e, x, matrix->inputs);
    for (int row = 0; row < num_rows; ++row)
      quantise_row(matrix->format, x + (int64_t)row * matrix->inputs, matrix->inputs, to, row);
    run_product(&e, *matrix, x, num_rows, out, matrix->outputs, nullptr, Then::STORE);
    failed = 0;
  }
  if (e.team) team_close(e.team);
  free(e.codes), free(e.scales), free(e.sums);
  return failed;
}
