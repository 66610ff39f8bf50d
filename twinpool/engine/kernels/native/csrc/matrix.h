// Products of rows of activations with a matrix, a strip of 16 outputs at a time.
#pragma once
#include "simd.h"
#include "twinpool_native.h"

constexpr int STRIP = 16;  // outputs
constexpr int GROUP = 32;  // inputs that share a scale

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }
inline int num_strips(int outputs) { return (outputs + STRIP - 1) / STRIP; }

// Activations of a step as a product takes them. For float32 and bfloat16 weights: the rows themselves. For int4:
// codes of 8 bits in groups of 32, of which each has its scale and the sum of what its codes stand for. For int8: the
// same with 16 bits, which costs no more, since products with codes of 8 bits do not fit 16. Rows of codes are padded
// with zeros to whole groups.
struct Activations {
  const float *rows;
  int row_size;
  void *codes;    // [rows, groups * 32] of 8 or 16 bits, as dots.h takes them
  float *scales;  // [rows, groups]
  float *sums;    // [rows, groups]
  int num_groups;
};

inline bool is_narrow(const tp_matrix &m) { return m.format == TP_INT8 || m.format == TP_INT4; }
inline int num_groups(int inputs) { return round_up(inputs, GROUP) / GROUP; }

// Writes codes, scales and sums of one row of x as a product with such weights takes them.
void quantise_row(int weights, const float *x, int inputs, const Activations &to, int row);

// out[r * out_stride + o] for the 16 outputs o of one strip and the rows [first_row, end_row). An output's sum
// runs over its inputs in order, whatever the number of rows, so that its bits depend on its own row alone.
void strip_product(const tp_matrix &matrix, int strip, const Activations &x, int first_row, int end_row,
                   float *out, int64_t out_stride);

// Row `output` of the matrix as floats.
void matrix_row(const tp_matrix &matrix, int output, float *out);
