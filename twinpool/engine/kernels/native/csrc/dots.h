// Products of codes, in integers: what a matrix in int4 or int8 spends its time with. Sums are exact.
//
// Each instruction set has a file that defines
//
//   group_dots<R>(tile, x, stride, dots): dots[r] = the sum of code * x over a group's inputs, for 8 outputs and R rows.
//       tile: the first of these outputs' codes (twinpool_native.h). Rows of x are stride codes apart; of 8 bits, they
//       go with weights of 4; of 16, with weights of 8, whose codes are lowered by 128.
//   store_codes(x, whole): a group's activations, 32 integers in order, as group_dots takes them.
#pragma once
#include "simd.h"

#ifdef __aarch64__
#include "dots_neon.h"
#else
#include "dots_avx2.h"
#endif
