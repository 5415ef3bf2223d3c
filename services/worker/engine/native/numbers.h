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
typedef float Four __attribute__((vector_size(16)));
constexpr int64_t kLanes = 16;

#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t Places __attribute__((vector_size(64)));
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

inline Lanes sums_of_pairs(Lanes a, Lanes b) {
  return SHUFFLED(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
         SHUFFLED(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}

// Of each of the four, the sum of its lanes.
inline Four sums_of(Lanes a, Lanes b, Lanes c, Lanes d) {
  const Lanes ab = sums_of_pairs(a, b), cd = sums_of_pairs(c, d);
  const Lanes all = SHUFFLED(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                    SHUFFLED(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  Four quarters[4];
  std::memcpy(quarters, &all, sizeof all);
  return (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
}

}  // namespace
