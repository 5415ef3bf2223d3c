// What operators.py passes by reference; the fields are those of its structures.
#pragma once

#include <cstdint>

struct Shape {
  int64_t num_heads, num_kv_heads, size, block_size;
  float scale, eps;
};

// One layer: the norms (size,) of query and key heads or null, keys and values (slots, KV heads,
// size).
struct Layer {
  const void *query_norm, *key_norm;
  void *keys, *values;
};

// One pass: the angles' tables (positions, size), of which the second halves are read; positions
// and slots (rows,); tables (decodes, columns) and lengths (decodes,) of the first rows.
struct Rows {
  const void *cos, *sin;
  const int64_t *positions, *slots;
  const int32_t *tables, *lengths;
  int64_t num_rows, num_decodes, num_columns, num_threads;
  int64_t parts_are_fixed;  // whether contexts are split by their own lengths alone
};
