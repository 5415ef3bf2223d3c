// Products of rows with a bfloat16 matrix as oneDNN packs it; of few rows, at the speed of memory.
//
// With few rows a product takes as long as reading its weights. oneDNN leaves that to the
// processor's own prefetching; here what is needed next is asked for ahead.
#pragma once

#include <algorithm>

#include "numbers.h"

#if defined(__AMX_BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int64_t kBlock = 32;        // outputs that lie side by side in a packed matrix
constexpr int64_t kStep = 32;         // inputs that one tile takes
constexpr int64_t kTileRows = 16;
constexpr int64_t kMostRows = 2 * kTileRows;
constexpr int64_t kStepBytes = kBlock * kStep * 2;  // of weights

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3: sums of (first 16 rows, rest) x (first 16 outputs, rest). 4 and 5: rows. 6 and 7:
// weights.
inline void configure(int64_t num_rows) {
  TileConfig config;
  const int64_t first = std::min(num_rows, kTileRows), rest = num_rows - first;
  for (int tile = 0; tile < 8; tile++) {
    const bool of_rest = tile == 2 || tile == 3 || tile == 5;
    const int64_t rows = tile >= 6 ? kTileRows : of_rest ? std::max<int64_t>(rest, 1) : first;
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = 64;
  }
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC thinks that 8 of its bytes are read
  _tile_loadconfig(&config);
}

inline void prefetch_step(const char* weights) {
  for (int64_t byte = 0; byte < kStepBytes; byte += 64) _mm_prefetch(weights + byte, _MM_HINT_T0);
}

// sums (rows, 32) of rows (rows, inputs) times one block of weights.
inline void block_product(const bf16* rows, int64_t num_rows, int64_t num_inputs,
                          const char* weights, float* sums) {
  const int64_t stride = num_inputs * 2;
  const bf16* rest = rows + kTileRows * num_inputs;
  const bool has_rest = num_rows > kTileRows;
  const int64_t ahead = (has_rest ? 2 : 1) * kStepBytes;  // measured
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < num_inputs; k += kStep, weights += kStepBytes) {
    prefetch_step(weights + ahead);
    _tile_loadd(4, rows + k, stride);
    _tile_loadd(6, weights, 128);
    _tile_loadd(7, weights + 64, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (has_rest) {
      _tile_loadd(5, rest + k, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kBlock * 4);
  _tile_stored(1, sums + 16, kBlock * 4);
  if (has_rest) {
    _tile_stored(2, sums + kTileRows * kBlock, kBlock * 4);
    _tile_stored(3, sums + kTileRows * kBlock + 16, kBlock * 4);
  }
}

// For each block of outputs, and of it for 32 rows at a time, ``compute`` gives floats (rows, 32) of
// the rows from its third argument on. ``finish`` makes of them what is stored in ``to`` (rows,
// outputs): it is given the float's place among them, and that in ``to``. Each output is one sum in
// one order, whatever the rows beside it.
template <class Out, class Compute, class Finish>
void by_blocks(Out* to, int64_t num_rows, int64_t num_outputs, int64_t num_threads,
               Compute compute, Finish finish) {
#pragma omp parallel num_threads(num_threads)
  {
    int64_t configured = std::min(num_rows, kMostRows);
    configure(configured);
    alignas(64) float sums[2][kMostRows * kBlock];
#pragma omp for schedule(static)
    for (int64_t block = 0; block < num_outputs / kBlock; block++)
      for (int64_t first = 0; first < num_rows; first += kMostRows) {
        const int64_t count = std::min(kMostRows, num_rows - first);
        if (count != configured) configure(configured = count);
        compute(block, sums, first, count);
        for (int64_t row = 0; row < count; row++)
#pragma omp simd
          for (int64_t i = 0; i < kBlock; i++) {
            const int64_t output = block * kBlock + i;
            const int64_t place = (first + row) * num_outputs + output;
            narrow(finish(sums, row * kBlock + i, output, place), to[place]);
          }
      }
    _tile_release();
  }
}

// rows (rows, inputs) times weights (outputs / 32, inputs / 2, 32, 2); bias (outputs,) and residual
// (rows, outputs) are added, null where there are none.
template <class Out>
void product(const bf16* rows, const char* weights, const bf16* bias, const bf16* residual,
             Out* to, int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
             int64_t num_threads) {
  by_blocks(
      to, num_rows, num_outputs, num_threads,
      [=](int64_t block, float (*sums)[kMostRows * kBlock], int64_t first, int64_t count) {
        block_product(rows + first * num_inputs, count, num_inputs,
                      weights + block * kBlock * num_inputs * 2, *sums);
      },
      [=](const float (*sums)[kMostRows * kBlock], int64_t i, int64_t output, int64_t place) {
        const float sum = sums[0][i] + (bias ? widen(bias[output]) : 0.0f);
        return residual ? sum + widen(residual[place]) : sum;
      });
}

// silu(rows times gates) * (rows times ups), each with its bias (outputs,) or null.
inline void gated_product(const bf16* rows, const char* gates, const bf16* gate_bias,
                          const char* ups, const bf16* up_bias, bf16* to, int64_t num_rows,
                          int64_t num_inputs, int64_t num_outputs, int64_t num_threads) {
  by_blocks(
      to, num_rows, num_outputs, num_threads,
      [=](int64_t block, float (*sums)[kMostRows * kBlock], int64_t first, int64_t count) {
        const bf16* some = rows + first * num_inputs;
        const int64_t skipped = block * kBlock * num_inputs * 2;
        block_product(some, count, num_inputs, gates + skipped, sums[0]);
        block_product(some, count, num_inputs, ups + skipped, sums[1]);
      },
      [=](const float (*sums)[kMostRows * kBlock], int64_t i, int64_t output, int64_t) {
        const float gate = sums[0][i] + (gate_bias ? widen(gate_bias[output]) : 0.0f);
        const float up = sums[1][i] + (up_bias ? widen(up_bias[output]) : 0.0f);
        return gate / (1.0f + exp_of(-gate)) * up;
      });
}

// Asks the kernel for the tiles' registers: whether this process may use them.
inline bool may_multiply() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

#else  // no tiles: nobody calls these

namespace {

inline bool may_multiply() { return false; }
template <class Out>
void product(const bf16*, const char*, const bf16*, const bf16*, Out*, int64_t, int64_t, int64_t,
             int64_t) {}
inline void gated_product(const bf16*, const char*, const bf16*, const char*, const bf16*, bf16*,
                          int64_t, int64_t, int64_t, int64_t) {}

}  // namespace

#endif
