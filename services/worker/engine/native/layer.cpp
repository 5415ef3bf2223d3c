// What a decoder layer does between its matrix products, on a CPU: norms, rotation, writes to the
// KV slots, attention of decode rows over block tables, and the gate of an MLP.
//
// Everything is computed in float and rounded once, to the model's dtype. Nothing is checked here:
// operators.py does that. Built by build.py with OpenMP, whose threads are torch's own.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kTile = 128;           // tokens whose scores are held at once
constexpr int64_t kAhead = 16;           // tokens that are asked of memory before they are read
constexpr int64_t kMinPart = 256;        // tokens of a context that one thread takes at least
constexpr int64_t kSerialElements = 8192;  // below this a second thread costs more than it brings
constexpr int64_t kSerialProducts = 16384;

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
              int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows * size > kSerialElements)
  for (int64_t row = 0; row < num_rows; row++)
    normed(rows + row * size, weight, size, eps, to + row * size);
}

template <class T>
void silu_mul(const T* gate_up, T* to, int64_t num_rows, int64_t width, int num_threads) {
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

template <class T>
void rope_store(T* qkv, const T* cos, const T* sin, const int64_t* positions, const int64_t* slots,
                const T* query_norm, const T* key_norm, T* keys, T* values, int64_t num_rows,
                int64_t num_heads, int64_t num_kv_heads, int64_t size, float eps,
                int num_threads) {
  const int64_t stride = (num_heads + 2 * num_kv_heads) * size, kv = num_kv_heads * size;
#pragma omp parallel for num_threads(num_threads) if (num_rows * stride > kSerialElements)
  for (int64_t row = 0; row < num_rows; row++) {
    T* heads = qkv + row * stride;
    const int64_t angle = positions[row] * size + size / 2;  // the sines' first half is negated
    for (int64_t head = 0; head < num_heads + num_kv_heads; head++) {
      T* one = heads + head * size;
      const T* norm = head < num_heads ? query_norm : key_norm;
      if (norm) normed(one, norm, size, eps, one);
      rotate(one, cos + angle, sin + angle, size / 2);
    }
    const T* fresh = heads + num_heads * size;
    std::memcpy(keys + slots[row] * kv, fresh, kv * sizeof(T));
    std::memcpy(values + slots[row] * kv, fresh + kv, kv * sizeof(T));
  }
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

// The query heads that share one KV head, over part of one row's context.
struct Part {
  int64_t row, kv_head, first, stop;
};

// kSize: the head size where it is known when this is compiled, else 0. Keys and values are read
// four tokens at a time; in scratch memory each takes whole lanes, with zeros at its end.
template <class T, int64_t kSize>
class Attention {
 public:
  Attention(const T* keys, const T* values, int64_t num_kv_heads, int64_t group, int64_t size,
            int64_t block_size)
      : keys_(keys), values_(values), stride_(num_kv_heads * size), group_(group), size_(size),
        block_size_(block_size), query_(group * num_lanes()), sums_(group * num_lanes()),
        wide_(4 * num_lanes()), scores_(group * kTile) {}

  // Sums of e^(score - best) times the values (group, size), and of e^(score - best) alone; the
  // best score of each head.
  void run(const T* query, const int32_t* table, const Part& part, float scale, float* sums,
           float* totals, float* bests) {
    for (int64_t head = 0; head < group_; head++)
      for (int64_t d = 0; d < size(); d++)
        floats(query_, head)[d] = widen(query[head * size() + d]) * scale;
    std::fill(sums_.begin(), sums_.end(), Lanes{});
    std::fill(totals, totals + group_, 0.0f);
    std::fill(bests, bests + group_, -INFINITY);
    for (int64_t first = part.first; first < part.stop; first += kTile) {
      const int64_t count = std::min(kTile, part.stop - first);
      for (int64_t i = 0; i < kTile; i++) {
        const int64_t token = first + std::min(i, count - 1);
        const int64_t slot = table[token / block_size_] * block_size_ + token % block_size_;
        offsets_[i] = slot * stride_ + part.kv_head * size();
      }
      score(count);
      for (int64_t head = 0; head < group_; head++) weigh(head, count, totals[head], bests[head]);
      add_values(count);
    }
    for (int64_t head = 0; head < group_; head++)
      std::memcpy(sums + head * size(), floats(sums_, head), size() * sizeof(float));
  }

 private:
  int64_t size() const { return kSize ? kSize : size_; }
  int64_t num_lanes() const { return (size() + kLanes - 1) / kLanes; }
  float* floats(std::vector<Lanes>& rows, int64_t row) {
    return reinterpret_cast<float*>(&rows[row * num_lanes()]);
  }

  void prefetch(const T* row) const {
    const char* line = reinterpret_cast<const char*>(row);
    for (size_t byte = 0; byte < size() * sizeof(T); byte += 64) __builtin_prefetch(line + byte);
  }

  void take_four(const T* plane, int64_t i) {
    for (int64_t n = 0; n < 4; n++) {
      const T* row = plane + offsets_[i + n];
      float* to = floats(wide_, n);
      for (int64_t d = 0; d < size(); d++) to[d] = widen(row[d]);
    }
  }

  void score(int64_t count) {
    for (int64_t i = 0; i < std::min(kAhead, count); i++) prefetch(keys_ + offsets_[i]);
    for (int64_t i = 0; i < count; i += 4) {
      for (int64_t n = i; n < i + 4; n++) {
        if (n + kAhead < count) prefetch(keys_ + offsets_[n + kAhead]);
        prefetch(values_ + offsets_[n]);
      }
      take_four(keys_, i);
      const Lanes* key = wide_.data();
      const int64_t lanes = num_lanes();
      for (int64_t head = 0; head < group_; head++) {
        const Lanes* query = &query_[head * lanes];
        Lanes a{}, b{}, c{}, d{};
        for (int64_t n = 0; n < lanes; n++) {
          a += query[n] * key[n];
          b += query[n] * key[lanes + n];
          c += query[n] * key[2 * lanes + n];
          d += query[n] * key[3 * lanes + n];
        }
        const Four sums = sums_of(a, b, c, d);
        std::memcpy(&scores_[head * kTile + i], &sums, sizeof sums);
      }
    }
  }

  // Scores become e^(score - best); what was summed for an earlier best is scaled down.
  void weigh(int64_t head, int64_t count, float& total, float& best) {
    float* scores = &scores_[head * kTile];
    float most = best;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; i++) most = scores[i] > most ? scores[i] : most;
    if (most > best) {
      const float factor = best == -INFINITY ? 0.0f : exp_of(best - most);
      total *= factor;
      for (int64_t n = 0; n < num_lanes(); n++) sums_[head * num_lanes() + n] *= factor;
      best = most;
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
      scores[i] = exp_of(scores[i] - best);
      sum += scores[i];
    }
    total += sum;
    std::fill(scores + count, scores + (count + 3) / 4 * 4, 0.0f);
  }

  void add_values(int64_t count) {
    for (int64_t i = 0; i < count; i += 4) {
      take_four(values_, i);
      const Lanes* value = wide_.data();
      const int64_t lanes = num_lanes();
      for (int64_t head = 0; head < group_; head++) {
        const float* weights = &scores_[head * kTile + i];
        Lanes* sums = &sums_[head * lanes];
        for (int64_t n = 0; n < lanes; n++)
          sums[n] += (weights[0] * value[n] + weights[1] * value[lanes + n]) +
                     (weights[2] * value[2 * lanes + n] + weights[3] * value[3 * lanes + n]);
      }
    }
  }

  const T *keys_, *values_;
  const int64_t stride_, group_, size_, block_size_;
  std::vector<Lanes> query_, sums_, wide_;
  std::vector<float> scores_;
  int64_t offsets_[kTile];
};

template <class T>
void write(const float* sums, const float* totals, int64_t group, int64_t size, T* to) {
  for (int64_t head = 0; head < group; head++)
    for (int64_t d = 0; d < size; d++) narrow(sums[head * size + d] / totals[head], to[head * size + d]);
}

// Several parts' sums as those of one, into the first's.
void join(float* sums, float* totals, float* bests, int64_t num_parts, int64_t group,
          int64_t size) {
  for (int64_t head = 0; head < group; head++) {
    float best = bests[head];
    for (int64_t n = 1; n < num_parts; n++) best = std::max(best, bests[n * group + head]);
    for (int64_t n = 0; n < num_parts; n++) {
      const float factor = exp_of(bests[n * group + head] - best);
      totals[head] = (n ? totals[head] : 0.0f) + factor * totals[n * group + head];
      const float* part = sums + (n * group + head) * size;
      float* to = sums + head * size;
      for (int64_t d = 0; d < size; d++) to[d] = (n ? to[d] : 0.0f) + factor * part[d];
    }
  }
}

template <class T, int64_t kSize>
void attend(const T* qkv, const T* keys, const T* values, const int32_t* tables,
            const int32_t* lengths, T* to, int64_t num_rows, int64_t num_columns,
            int64_t num_heads, int64_t num_kv_heads, int64_t size, int64_t block_size, float scale,
            int num_threads) {
  const int64_t group = num_heads / num_kv_heads;
  const int64_t stride = (num_heads + 2 * num_kv_heads) * size;
  int64_t num_tokens = 0;
  for (int64_t row = 0; row < num_rows; row++) num_tokens += lengths[row];
  const int64_t share = num_tokens * num_kv_heads / (4 * num_threads);
  const int64_t step = num_threads == 1 ? INT64_MAX : std::max(kMinPart, share);

  std::vector<Part> parts;
  std::vector<int64_t> firsts;  // of each row and KV head, the first part
  for (int64_t row = 0; row < num_rows; row++)
    for (int64_t kv_head = 0; kv_head < num_kv_heads; kv_head++) {
      firsts.push_back(static_cast<int64_t>(parts.size()));
      const int64_t length = lengths[row];
      const int64_t count = length / step + (length % step != 0);
      for (int64_t n = 0; n < count; n++)
        parts.push_back({row, kv_head, length * n / count, length * (n + 1) / count});
    }
  firsts.push_back(static_cast<int64_t>(parts.size()));

  const int64_t num_parts = static_cast<int64_t>(parts.size());
  std::vector<float> sums(num_parts * group * size), totals(num_parts * group),
      bests(num_parts * group);
  const bool is_parallel = num_tokens * num_heads * size > kSerialProducts;
  // A row's heads lie side by side in memory: a thread takes several at once.
  const int64_t turn = std::max<int64_t>(1, num_parts / (4 * num_threads));
#pragma omp parallel num_threads(num_threads) if (is_parallel)
  {
    Attention<T, kSize> attention(keys, values, num_kv_heads, group, size, block_size);
#pragma omp for schedule(dynamic, turn)
    for (int64_t n = 0; n < num_parts; n++) {
      const Part& part = parts[n];
      const T* query = qkv + part.row * stride + part.kv_head * group * size;
      attention.run(query, tables + part.row * num_columns, part, scale, &sums[n * group * size],
                    &totals[n * group], &bests[n * group]);
    }
#pragma omp for
    for (int64_t n = 0; n < num_rows * num_kv_heads; n++) {
      const int64_t first = firsts[n];
      float* sum = &sums[first * group * size];
      join(sum, &totals[first * group], &bests[first * group], firsts[n + 1] - first, group, size);
      write(sum, &totals[first * group], group, size, to + n * group * size);
    }
  }
}

template <class T, class... Rest>
void attend_sized(int64_t size, Rest... rest) {
  if (size == 64)
    attend<T, 64>(rest...);
  else if (size == 128)
    attend<T, 128>(rest...);
  else
    attend<T, 0>(rest...);
}

}  // namespace

#define FOR_EACH_DTYPE(OPERATOR) OPERATOR(float, float32) OPERATOR(bf16, bfloat16)

#define EXPORT(T, name)                                                                           \
  extern "C" void rms_norm_##name(const T* rows, const T* weight, T* to, int64_t num_rows,        \
                                  int64_t size, float eps, int num_threads) {                     \
    rms_norm(rows, weight, to, num_rows, size, eps, num_threads);                                 \
  }                                                                                               \
  extern "C" void silu_mul_##name(const T* gate_up, T* to, int64_t num_rows, int64_t width,       \
                                  int num_threads) {                                              \
    silu_mul(gate_up, to, num_rows, width, num_threads);                                          \
  }                                                                                               \
  extern "C" void rope_store_##name(                                                              \
      T* qkv, const T* cos, const T* sin, const int64_t* positions, const int64_t* slots,         \
      const T* query_norm, const T* key_norm, T* keys, T* values, int64_t num_rows,               \
      int64_t num_heads, int64_t num_kv_heads, int64_t size, float eps, int num_threads) {        \
    rope_store(qkv, cos, sin, positions, slots, query_norm, key_norm, keys, values, num_rows,     \
               num_heads, num_kv_heads, size, eps, num_threads);                                  \
  }                                                                                               \
  extern "C" void decode_attention_##name(                                                        \
      const T* qkv, const T* keys, const T* values, const int32_t* tables,                        \
      const int32_t* lengths, T* to, int64_t num_rows, int64_t num_columns, int64_t num_heads,    \
      int64_t num_kv_heads, int64_t size, int64_t block_size, float scale, int num_threads) {     \
    attend_sized<T>(size, qkv, keys, values, tables, lengths, to, num_rows, num_columns,          \
                    num_heads, num_kv_heads, size, block_size, scale, num_threads);               \
  }

FOR_EACH_DTYPE(EXPORT)
