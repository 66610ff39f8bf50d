// The draw of a token as twinpool/engine/draw.py defines it: weights, what is kept of them, and a race.
#include "sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"

namespace {

constexpr int BLOCK = 256;
constexpr int BUCKETS = 1024;  // by how far a token lies below the likeliest one
constexpr double PER_UNIT = 32;

struct Item {
  double weight;
  int32_t id;
};

// The first of the greatest numbers; -1 where there is none.
int likeliest(const float *logits, int size) {
  float most = -INFINITY;
  int where = -1;
  for (int first = 0; first < size; first += BLOCK) {
    int end = first + BLOCK < size ? first + BLOCK : size, i = first;
    vec block = splat(-INFINITY);
    for (; i + LANES <= end; i += LANES) block = max(load(logits + i), block);  // NaN gives way to what is second
    float here = greatest(block);
    for (; i < end; ++i) here = logits[i] > here ? logits[i] : here;
    if (here > most) most = here, where = first;
  }
  if (where < 0) return -1;
  while (logits[where] != most) ++where;
  return where;
}

// e^x for x <= 0, to a unit in the last place; 0 below -708. As in simd.h, in doubles; loops of it are vectorised.
inline double exponential(double x) {
  constexpr double ROUND = 0x1.8p52;  // a sum with it has the nearest integer in its last bits
  double limited = x > -708.0 ? x : -708.0;
  double shifted = limited * 1.4426950408889634 + ROUND, n = shifted - ROUND;
  double r = fma(n, -1.90821492927058770002e-10, fma(n, -6.93147180369123816490e-01, limited));
  double p = 1.0 / 6227020800;
  p = fma(p, r, 1.0 / 479001600);
  p = fma(p, r, 1.0 / 39916800);
  p = fma(p, r, 1.0 / 3628800);
  p = fma(p, r, 1.0 / 362880);
  p = fma(p, r, 1.0 / 40320);
  p = fma(p, r, 1.0 / 5040);
  p = fma(p, r, 1.0 / 720);
  p = fma(p, r, 1.0 / 120);
  p = fma(p, r, 1.0 / 24);
  p = fma(p, r, 1.0 / 6);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  uint64_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return x > -708.0 ? p * power : 0.0;
}

// Philox4x64-10 (Salmon et al., SC'11): a group is four numbers in (0, 1], for tokens 4 * group and the next three.
struct Numbers {
  uint64_t seed, choice, position;

  // Several neighbouring groups at once, since each of them is one long chain of products.
  template <int N>
  void groups(uint64_t first, double *out) const {
    uint64_t c[N][4], k0 = seed, k1 = choice;
    for (int n = 0; n < N; ++n) c[n][0] = first + n + 1, c[n][1] = position, c[n][2] = 0, c[n][3] = 0;
    for (int round = 0; round < 10; ++round) {
      for (int n = 0; n < N; ++n) {
        unsigned __int128 a = (unsigned __int128)0xD2E7470EE14C6C93u * c[n][0];
        unsigned __int128 b = (unsigned __int128)0xCA5A826395121157u * c[n][2];
        c[n][0] = (uint64_t)(b >> 64) ^ c[n][1] ^ k0, c[n][2] = (uint64_t)(a >> 64) ^ c[n][3] ^ k1;
        c[n][1] = (uint64_t)b, c[n][3] = (uint64_t)a;
      }
      k0 += 0x9E3779B97F4A7C15u, k1 += 0xBB67AE8584CAA73Bu;
    }
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < 4; ++i) out[4 * n + i] = (double)((int64_t)(c[n][i] >> 11) + 1) * 0x1p-53;
  }

  double of(int token) const {
    double four[4];
    groups<1>(token / 4, four);
    return four[token % 4];
  }
};

// Who comes first, where each comes after -log(number) / weight. As -log(u) >= 1 - u, few need a logarithm.
struct Race {
  double time;
  int winner;

  void enter(int token, double weight, double number) {
    if (weight <= 0 || 1.0 - number > weight * time) return;
    double own = -log(number) / weight;
    if (own < time || (own == time && token < winner)) time = own, winner = token;
  }
};

int heavier_first(const void *a, const void *b) {
  const Item *one = static_cast<const Item *>(a), *other = static_cast<const Item *>(b);
  if (one->weight != other->weight) return one->weight > other->weight ? -1 : 1;
  return one->id < other->id ? -1 : 1;
}

// Sums in four parts, which do not wait for one another.
double sum_of(const double *numbers, int size) {
  double parts[4] = {};
  int i = 0;
  for (; i + 4 <= size; i += 4)
    for (int k = 0; k < 4; ++k) parts[k] += numbers[i + k];
  for (; i < size; ++i) parts[0] += numbers[i];
  return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

// The heaviest tokens, in order, as many as top_k and top_p keep; returns how many.
int keep(const tp_draw &draw, const float *logits, int size, float most, const double *weights, Item *items) {
  bool counted = draw.top_k > 0 && draw.top_k < size;
  double total = counted ? 0 : sum_of(weights, size);
  double per_unit = counted ? PER_UNIT : PER_UNIT / draw.temperature, enough = counted ? draw.top_k : draw.top_p * total;
  // Tokens go to buckets by their distance from the likeliest; only the first buckets are sorted.
  float held[4][BUCKETS] = {};
  for (int i = 0; i < size; ++i) {
    if (weights[i] <= 0) continue;
    double depth = ((double)most - logits[i]) * per_unit;
    held[i % 4][depth < BUCKETS - 1 ? (int)depth : BUCKETS - 1] += counted ? 1.0f : (float)weights[i];
  }
  int last = 0;
  for (double sum = 0; last < BUCKETS; ++last) {
    sum += (double)held[0][last] + held[1][last] + held[2][last] + held[3][last];
    if (sum >= enough) break;
  }
  if (!counted) ++last;  // rounded sums may be enough a little early
  double deepest = last < BUCKETS - 1 ? (last + 1) / per_unit : INFINITY;

  int kept = 0;
  for (int i = 0; i < size; ++i)
    if ((double)most - logits[i] <= deepest && weights[i] > 0) items[kept++] = {weights[i], i};
  qsort(items, kept, sizeof(Item), heavier_first);
  if (counted && kept > draw.top_k) kept = draw.top_k;
  if (draw.top_p >= 1.0) return kept;
  for (int i = 0; counted && i < kept; ++i) total += items[i].weight;
  double sum = 0;
  for (int i = 0; i < kept; ++i)
    if ((sum += items[i].weight) >= draw.top_p * total) return i + 1;
  return kept;
}

}  // namespace

int64_t draw_scratch(int size) { return ((int64_t)size * (sizeof(double) + sizeof(Item)) + 63) / 64 * 64; }

int draw_token(const tp_draw &draw, const float *logits, int size, char *scratch) {
  int best = likeliest(logits, size);
  if (best < 0 || draw.temperature == 0) return best;
  double *weights = reinterpret_cast<double *>(scratch);
  Item *items = reinterpret_cast<Item *>(weights + size);
  float most = logits[best];
  for (int i = 0; i < size; ++i) {
    double weight = exponential(((double)logits[i] - most) / draw.temperature);
    weights[i] = weight >= draw.min_p ? weight : 0.0;  // the likeliest weighs 1; NaN weighs nothing
  }
  Numbers numbers{draw.seed, draw.choice, draw.position};
  Race race{-log(numbers.of(best)), best};
  if ((draw.top_k > 0 && draw.top_k < size) || draw.top_p < 1.0) {
    int kept = keep(draw, logits, size, most, weights, items);
    for (int i = 0; i < kept; ++i) race.enter(items[i].id, items[i].weight, numbers.of(items[i].id));
    return race.winner;
  }
  constexpr int TOKENS = 8;
  double numbers_of[TOKENS];
  int i = 0;
  for (; i + TOKENS <= size; i += TOKENS) {
    numbers.groups<TOKENS / 4>(i / 4, numbers_of);
    for (int k = 0; k < TOKENS; ++k) race.enter(i + k, weights[i + k], numbers_of[k]);
  }
  for (; i < size; ++i) race.enter(i, weights[i], numbers.of(i));
  return race.winner;
}
