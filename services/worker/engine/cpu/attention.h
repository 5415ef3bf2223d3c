// Attention of rows of one token each over block tables.
#pragma once

#include <algorithm>
#include <vector>

#include "numbers.h"
#include "structures.h"

namespace {

constexpr int64_t kTile = 128;      // tokens whose scores are held at once
constexpr int64_t kAhead = 16;      // tokens that are asked of memory before they are read
constexpr int64_t kMinPart = 256;   // tokens of a context that one thread takes at least
constexpr int64_t kFixedPart = 512; // tokens of each part where parts do not depend on other rows
constexpr int64_t kSerialProducts = 16384;  // below this a second thread costs more than it brings

// The query heads that share one KV head, over part of one row's context.
struct Part {
  int64_t row, kv_head, first, stop;
};

// kSize: the head size where it is known when this is compiled, else 0. Keys and values are read
// four tokens at a time; in scratch memory each takes whole lanes, with zeros at its end.
template <class T, int64_t kSize>
class Attention {
 public:
  Attention(const Layer& layer, const Shape& shape)
      : keys_(static_cast<const T*>(layer.keys)), values_(static_cast<const T*>(layer.values)),
        stride_(shape.num_kv_heads * shape.size), group_(shape.num_heads / shape.num_kv_heads),
        size_(shape.size), block_size_(shape.block_size), scale_(shape.scale),
        query_(group_ * num_lanes()), sums_(group_ * num_lanes()), wide_(4 * num_lanes()),
        scores_(group_ * kTile) {}

  // Sums of e^(score - best) times the values (group, size), and of e^(score - best) alone; the
  // best score of each head.
  void run(const T* query, const int32_t* table, const Part& part, float* sums,
           float* totals, float* bests) {
    for (int64_t head = 0; head < group_; head++)
      for (int64_t d = 0; d < size(); d++)
        floats(query_, head)[d] = widen(query[head * size() + d]) * scale_;
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
  const float scale_;
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

// Of the rows that have tables; queries lie in qkv (rows, (heads + 2 KV heads) * size).
template <class T, int64_t kSize>
void attend(const Shape& shape, const Layer& layer, const Rows& rows, const T* qkv, T* to) {
  const int64_t num_kv_heads = shape.num_kv_heads, num_rows = rows.num_decodes, size = shape.size;
  const int32_t* lengths = rows.lengths;
  const int num_threads = static_cast<int>(rows.num_threads);
  const int64_t group = shape.num_heads / num_kv_heads;
  const int64_t stride = (shape.num_heads + 2 * num_kv_heads) * size;
  int64_t num_tokens = 0;
  for (int64_t row = 0; row < num_rows; row++) num_tokens += lengths[row];
  const int64_t share = num_tokens * num_kv_heads / (4 * num_threads);
  const int64_t some = num_threads == 1 ? INT64_MAX : std::max(kMinPart, share);
  const int64_t step = rows.parts_are_fixed ? kFixedPart : some;

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
  const bool is_parallel = num_tokens * shape.num_heads * size > kSerialProducts;
  // A row's heads lie side by side in memory: a thread takes several at once.
  const int64_t turn = std::max<int64_t>(1, num_parts / (4 * num_threads));
#pragma omp parallel num_threads(num_threads) if (is_parallel)
  {
    Attention<T, kSize> attention(layer, shape);
#pragma omp for schedule(dynamic, turn)
    for (int64_t n = 0; n < num_parts; n++) {
      const Part& part = parts[n];
      const T* query = qkv + part.row * stride + part.kv_head * group * size;
      attention.run(query, rows.tables + part.row * rows.num_columns, part,
                    &sums[n * group * size], &totals[n * group], &bests[n * group]);
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

template <class T>
void attend(const Shape& shape, const Layer& layer, const Rows& rows, const T* qkv, T* to) {
  if (!rows.num_decodes) return;
  if (shape.size == 64)
    attend<T, 64>(shape, layer, rows, qkv, to);
  else if (shape.size == 128)
    attend<T, 128>(shape, layer, rows, qkv, to);
  else
    attend<T, 0>(shape, layer, rows, qkv, to);
}

}  // namespace
