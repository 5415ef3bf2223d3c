// Numbers of a model's dtypes as floats and back, e^x, and sixteen floats at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct bf16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }

inline float widen(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

inline void narrow(float x, float& to) { to = x; }

inline void narrow(float x, bf16& to) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x == x ? rounded : 0x7FC0);
}

// e^x by a power of two and a polynomial, in a form that compilers turn into vectors; relative
// error below 1e-6. What is no number stays none.
inline float exp_of(float x) {
  const bool overflows = x > 88.0f;
  x = x < -87.0f ? -87.0f : x;
  x = overflows ? 88.0f : x;
  const float power = std::nearbyint(x * 1.44269504f);
  float rest = x - power * 0.693359375f;
  rest += power * 2.12194440e-4f;
  float series = 1.98756915e-4f;
  series = series * rest + 1.39819995e-3f;
  series = series * rest + 8.33345190e-3f;
  series = series * rest + 4.16657960e-2f;
  series = series * rest + 1.66666650e-1f;
  series = series * rest + 5.00000012e-1f;
  series = series * rest * rest + rest + 1.0f;
  const int32_t bits = (static_cast<int32_t>(x == x ? power : 0.0f) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return overflows ? INFINITY : series * scale;
}

// Sixteen floats: one register of AVX-512, which compilers split where there are lesser ones.
typedef float Lanes __attribute__((vector_size(64)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));
constexpr int64_t kLanes = 16;

#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t Places __attribute__((vector_size(32)));
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

inline Eight sum_of_halves(Lanes a) {
  Eight halves[2];
  std::memcpy(halves, &a, sizeof a);
  return halves[0] + halves[1];
}

inline Eight sums_of_pairs(Eight a, Eight b) {
  return SHUFFLED(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLED(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}

// Of each of the four, the sum of its lanes.
inline Four sums_of(Lanes a, Lanes b, Lanes c, Lanes d) {
  const Eight ab = sums_of_pairs(sum_of_halves(a), sum_of_halves(b));
  const Eight cd = sums_of_pairs(sum_of_halves(c), sum_of_halves(d));
  const Eight all = SHUFFLED(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
                    SHUFFLED(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  Four halves[2];
  std::memcpy(halves, &all, sizeof all);
  return halves[0] + halves[1];
}

}  // namespace
