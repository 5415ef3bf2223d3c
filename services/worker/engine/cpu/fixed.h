// Products in which every output is one sum in the order of the inputs: whatever the rows beside it,
// a row's outputs have the same bits. For any dtype and any processor.
#pragma once

#include <algorithm>

#include "numbers.h"

namespace {

constexpr int64_t kOutputs = 64;            // of one block, side by side for every input
constexpr int64_t kRowsAtOnce = 6;          // as many sums as registers hold
constexpr int64_t kSerialSums = 1 << 16;    // below this a second thread costs more than it brings

inline Lanes wide_lanes(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

inline Lanes wide_lanes(const bf16* from) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  typedef uint32_t Words __attribute__((vector_size(64)));
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  const Words words = __builtin_convertvector(halves, Words) << 16;
  Lanes lanes;
  std::memcpy(&lanes, &words, sizeof lanes);
  return lanes;
}

// sums (kRows, 64) of rows (kRows, inputs) times one block of weights (inputs, 64).
template <class T, int64_t kRows>
void fixed_block(const T* rows, int64_t num_inputs, const T* weights, float* sums) {
  Lanes totals[kRows][4] = {};
  for (int64_t k = 0; k < num_inputs; k++, weights += kOutputs) {
    const Lanes a = wide_lanes(weights), b = wide_lanes(weights + 16),
                c = wide_lanes(weights + 32), d = wide_lanes(weights + 48);
    for (int64_t row = 0; row < kRows; row++) {
      const float x = widen(rows[row * num_inputs + k]);
      totals[row][0] += x * a;
      totals[row][1] += x * b;
      totals[row][2] += x * c;
      totals[row][3] += x * d;
    }
  }
  std::memcpy(sums, totals, sizeof totals);
}

template <class T>
void fixed_blocks(const T* rows, int64_t num_rows, int64_t num_inputs, const T* weights,
                  float* sums) {
  switch (num_rows) {
    case 1: return fixed_block<T, 1>(rows, num_inputs, weights, sums);
    case 2: return fixed_block<T, 2>(rows, num_inputs, weights, sums);
    case 3: return fixed_block<T, 3>(rows, num_inputs, weights, sums);
    case 4: return fixed_block<T, 4>(rows, num_inputs, weights, sums);
    case 5: return fixed_block<T, 5>(rows, num_inputs, weights, sums);
    default: return fixed_block<T, 6>(rows, num_inputs, weights, sums);
  }
}

// rows (rows, inputs) times weights (outputs / 64, inputs, 64), the last block filled up with
// zeros; bias (outputs,) and residual (rows, outputs) are added, null where there are none.
template <class T, class Out>
void fixed_product(const T* rows, const T* weights, const T* bias, const T* residual, Out* to,
                   int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
                   int64_t num_threads) {
  const int64_t num_blocks = (num_outputs + kOutputs - 1) / kOutputs;
#pragma omp parallel for num_threads(num_threads) schedule(static) \
    if (num_rows * num_inputs * num_outputs > kSerialSums)
  for (int64_t block = 0; block < num_blocks; block++) {
    const int64_t begin = block * kOutputs, count = std::min(kOutputs, num_outputs - begin);
    for (int64_t first = 0; first < num_rows; first += kRowsAtOnce) {
      const int64_t group = std::min(kRowsAtOnce, num_rows - first);
      alignas(64) float sums[kRowsAtOnce * kOutputs];
      fixed_blocks(rows + first * num_inputs, group, num_inputs, weights + begin * num_inputs,
                   sums);
      for (int64_t row = 0; row < group; row++)
        for (int64_t i = 0; i < count; i++) {
          const int64_t place = (first + row) * num_outputs + begin + i;
          float sum = sums[row * kOutputs + i] + (bias ? widen(bias[begin + i]) : 0.0f);
          if (residual) sum += widen(residual[place]);
          narrow(sum, to[place]);
        }
    }
  }
}

}  // namespace
