// What a decoder does between its matrix products, on a CPU.
//
// Everything is computed in float and rounded once, to the model's dtype. Nothing is checked here:
// callers give contiguous memory of the dtype in a function's name, and layout.py has checked
// blocks, slots and positions. Built by build.py with OpenMP, whose threads are torch's own.
#include "attention.h"
#include "fixed.h"
#include "product.h"
#include "rows.h"

#define KERNELS_FOR(T, name)                                                                      \
  extern "C" void rms_norm_##name(const T* rows, const T* weight, T* to, int64_t num_rows,        \
                                  int64_t size, float eps, int64_t num_threads) {                 \
    rms_norm(rows, weight, to, num_rows, size, eps, num_threads);                                 \
  }                                                                                               \
  extern "C" void silu_mul_##name(const T* gate_up, T* to, int64_t num_rows, int64_t width,       \
                                  int64_t num_threads) {                                          \
    silu_mul(gate_up, to, num_rows, width, num_threads);                                          \
  }                                                                                               \
  extern "C" void greatest_##name(const T* rows, int64_t* to, int64_t num_rows, int64_t size,     \
                                  int64_t num_threads) {                                          \
    greatest(rows, to, num_rows, size, num_threads);                                              \
  }                                                                                               \
  extern "C" void store_and_attend_##name(const Shape* shape, const Layer* layer,                 \
                                          const Rows* rows, T* qkv, T* to) {                      \
    rope_store(*shape, *layer, *rows, qkv);                                                       \
    attend(*shape, *layer, *rows, qkv, to);                                                       \
  }

KERNELS_FOR(float, float32)
KERNELS_FOR(bf16, bfloat16)

extern "C" int may_multiply_bfloat16() { return may_multiply(); }

#define PRODUCTS_TO(Out, name)                                                                     \
  extern "C" void product_bfloat16_##name(                                                        \
      const bf16* rows, const char* weights, const bf16* bias, const bf16* residual, Out* to,     \
      int64_t num_rows, int64_t num_inputs, int64_t num_outputs, int64_t num_threads) {           \
    product(rows, weights, bias, residual, to, num_rows, num_inputs, num_outputs, num_threads);   \
  }                                                                                               \
  extern "C" void fixed_product_bfloat16_##name(                                                  \
      const bf16* rows, const bf16* weights, const bf16* bias, const bf16* residual, Out* to,     \
      int64_t num_rows, int64_t num_inputs, int64_t num_outputs, int64_t num_threads) {           \
    fixed_product(rows, weights, bias, residual, to, num_rows, num_inputs, num_outputs,           \
                  num_threads);                                                                   \
  }

PRODUCTS_TO(float, float32)
PRODUCTS_TO(bf16, bfloat16)

extern "C" void fixed_product_float32_float32(const float* rows, const float* weights,
                                              const float* bias, const float* residual, float* to,
                                              int64_t num_rows, int64_t num_inputs,
                                              int64_t num_outputs, int64_t num_threads) {
  fixed_product(rows, weights, bias, residual, to, num_rows, num_inputs, num_outputs, num_threads);
}

extern "C" void gated_product_bfloat16(const bf16* rows, const char* gates, const bf16* gate_bias,
                                       const char* ups, const bf16* up_bias, bf16* to,
                                       int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
                                       int64_t num_threads) {
  gated_product(rows, gates, gate_bias, ups, up_bias, to, num_rows, num_inputs, num_outputs,
                num_threads);
}
