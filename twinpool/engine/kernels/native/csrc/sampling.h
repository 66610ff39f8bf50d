// One row's next token out of its logits.
#pragma once
#include "twinpool_native.h"

// Bytes of scratch memory for draw_token.
int64_t draw_scratch(int size);

// The token; -1 where no logit is a number.
int draw_token(const tp_draw &draw, const float *logits, int size, char *scratch);
