// Vectors of eight floats (vec) and of eight 32-bit integers (ints), and the few things done with them.
//
// Each instruction set has a file that defines the same functions, lane by lane the same operations in the same order,
// so that a float's bits are the same wherever they are computed, but for the C library's functions.
#pragma once
#include <stdint.h>
#include <string.h>

constexpr int LANES = 8;

#ifdef __aarch64__
#include "simd_neon.h"
#else
#include "simd_avx2.h"
#endif

// e^x to 2 units in the last place; 0 below -87.3. 2^n e^r with |r| <= ln 2 / 2, e^r by its Taylor series.
inline vec exponential(vec x) {
  const vec least = splat(-87.3f);
  vec within = min(max(x, least), splat(88.3f));
  ints n = nearest(mul(within, splat(1.44269504f)));
  vec whole = floats(n);
  vec r = fma(whole, splat(-0.693145752f), within);  // ln 2 in two parts
  r = fma(whole, splat(-1.42860677e-6f), r);
  vec p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return zero_below(x, least, mul(p, power_of_2(n)));
}

inline vec silu(vec x) { return div(x, add(splat(1.0f), exponential(sub(zero(), x)))); }
