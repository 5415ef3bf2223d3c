// What is computed row by row: norms, rotation and writes to the KV slots, gates, greatest logits.
#pragma once

#include <algorithm>

#include "numbers.h"
#include "structures.h"

namespace {

constexpr int64_t kSerialElements = 8192;  // below this a second thread costs more than it brings

template <class T>
float inverse_rms(const T* row, int64_t size, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; i++) sum += widen(row[i]) * widen(row[i]);
  return 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
}

template <class T>
void normed(const T* row, const T* weight, int64_t size, float eps, T* to) {
  const float inverse = inverse_rms(row, size, eps);
#pragma omp simd
  for (int64_t i = 0; i < size; i++) narrow(widen(row[i]) * inverse * widen(weight[i]), to[i]);
}

template <class T>
void rms_norm(const T* rows, const T* weight, T* to, int64_t num_rows, int64_t size, float eps,
              int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows * size > kSerialElements)
  for (int64_t row = 0; row < num_rows; row++)
    normed(rows + row * size, weight, size, eps, to + row * size);
}

template <class T>
void silu_mul(const T* gate_up, T* to, int64_t num_rows, int64_t width, int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows * width > kSerialElements)
  for (int64_t row = 0; row < num_rows; row++) {
    const T* gate = gate_up + row * 2 * width;
    const T* up = gate + width;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
      const float x = widen(gate[i]);
      narrow(x / (1.0f + exp_of(-x)) * widen(up[i]), to[row * width + i]);
    }
  }
}

template <class T>
void rotate(T* head, const T* cos, const T* sin, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; i++) {
    const float low = widen(head[i]), high = widen(head[i + half]);
    narrow(low * widen(cos[i]) - high * widen(sin[i]), head[i]);
    narrow(high * widen(cos[i]) + low * widen(sin[i]), head[i + half]);
  }
}

// Rotates queries and keys of qkv (rows, (heads + 2 KV heads) * size) where they are, and stores
// keys and values.
template <class T>
void rope_store(const Shape& shape, const Layer& layer, const Rows& rows, T* qkv) {
  const int64_t size = shape.size, kv = shape.num_kv_heads * size;
  const int64_t stride = shape.num_heads * size + 2 * kv;
  const T *cos = static_cast<const T*>(rows.cos), *sin = static_cast<const T*>(rows.sin);
#pragma omp parallel for num_threads(rows.num_threads) if (rows.num_rows * stride > kSerialElements)
  for (int64_t row = 0; row < rows.num_rows; row++) {
    T* heads = qkv + row * stride;
    const int64_t angle = rows.positions[row] * size + size / 2;
    for (int64_t head = 0; head < shape.num_heads + shape.num_kv_heads; head++) {
      T* one = heads + head * size;
      const void* norm = head < shape.num_heads ? layer.query_norm : layer.key_norm;
      if (norm) normed(one, static_cast<const T*>(norm), size, shape.eps, one);
      rotate(one, cos + angle, sin + angle, size / 2);
    }
    const T* fresh = heads + shape.num_heads * size;
    std::memcpy(static_cast<T*>(layer.keys) + rows.slots[row] * kv, fresh, kv * sizeof(T));
    std::memcpy(static_cast<T*>(layer.values) + rows.slots[row] * kv, fresh + kv, kv * sizeof(T));
  }
}

// The place of the greatest of a row, the first of equals; the first NaN where there is one.
template <class T>
int64_t place_of_greatest(const T* row, int64_t size) {
  constexpr int64_t kPart = 1024;
  int64_t best_part = 0;
  float best = -INFINITY;
  for (int64_t first = 0; first < size; first += kPart) {
    const int64_t stop = std::min(first + kPart, size);
    float most = -INFINITY;
    int32_t num_nan = 0;
#pragma omp simd reduction(max : most) reduction(+ : num_nan)
    for (int64_t i = first; i < stop; i++) {
      const float x = widen(row[i]);
      most = x > most ? x : most;
      num_nan += x != x;
    }
    if (num_nan) {
      while (widen(row[first]) == widen(row[first])) first++;
      return first;
    }
    if (most > best) best = most, best_part = first;
  }
  while (widen(row[best_part]) != best) best_part++;
  return best_part;
}

template <class T>
void greatest(const T* rows, int64_t* to, int64_t num_rows, int64_t size, int64_t num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows * size > kSerialElements)
  for (int64_t row = 0; row < num_rows; row++) to[row] = place_of_greatest(rows + row * size, size);
}

}  // namespace
