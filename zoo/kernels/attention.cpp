// Causal softmax attention of short sequences, forward and backward, one head at a time: a head's keys and
// values stay in the cache, blocks of scores as well, and scores that no query sees are not computed beyond a
// block's end. All sums are in float. The formulas are those of short_attention.py, which the tests compare
// this file with.

#include "vectors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace zoo {

#if defined(__AVX512F__)
constexpr int ROWS = 8;  // rows of a tile, whose sums stay in registers
#else
constexpr int ROWS = 4;
#endif
constexpr int64_t BLOCK = 16;  // queries whose scores are computed together

inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Matrix entries with a stride for each index.
struct Left {
  const float* at;
  int64_t by_row, by_column;
};

// c[ROWS][N * LANES] (+)= a[ROWS][depth] b[depth][N * LANES]
template <int N, bool ADD>
inline void tile(Left a, const float* b, int64_t b_rows, int64_t depth, float* c, int64_t c_rows) {
  Floats sums[ROWS][N];
  for (int i = 0; i < ROWS; ++i) {
    for (int n = 0; n < N; ++n) sums[i][n] = ADD ? load(c + i * c_rows + n * LANES) : Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats row[N];
    for (int n = 0; n < N; ++n) row[n] = load(b + k * b_rows + n * LANES);
    for (int i = 0; i < ROWS; ++i) {
      const float x = a.at[i * a.by_row + k * a.by_column];
      for (int n = 0; n < N; ++n) sums[i][n] += x * row[n];
    }
  }
  for (int i = 0; i < ROWS; ++i) {
    for (int n = 0; n < N; ++n) store(c + i * c_rows + n * LANES, sums[i][n]);
  }
}

// c[rows][columns] (+)= a[rows][depth] b[depth][columns]; rows in tiles of ROWS, columns in LANES.
template <bool ADD>
void product(Left a, const float* b, int64_t b_rows, float* c, int64_t c_rows, int64_t rows, int64_t columns,
             int64_t depth) {
  for (int64_t j = 0; j < columns;) {
    const bool two = columns - j >= 2 * LANES;
    for (int64_t i = 0; i < rows; i += ROWS) {
      const Left rest{a.at + i * a.by_row, a.by_row, a.by_column};
      float* to = c + i * c_rows + j;
      two ? tile<2, ADD>(rest, b + j, b_rows, depth, to, c_rows)
          : tile<1, ADD>(rest, b + j, b_rows, depth, to, c_rows);
    }
    j += two ? 2 * LANES : LANES;
  }
}

// A tensor (batch, time, heads, size) whose last axis is contiguous.
template <typename T>
struct Heads {
  T* data;
  const int64_t* strides;

  T* head(int64_t batch, int64_t head) const { return data + batch * strides[0] + head * strides[2]; }
};

struct Shape {
  int64_t batch, time, heads, size;
};

template <typename T>
void read_rows(const T* from, int64_t stride, Shape shape, float factor, float* to, int64_t columns) {
  for (int64_t t = 0; t < shape.time; ++t) {
    for (int64_t d = 0; d < shape.size; ++d) to[t * columns + d] = widened(from[t * stride + d]) * factor;
  }
}

template <typename T>
void read_columns(const T* from, int64_t stride, Shape shape, float* to, int64_t columns) {
  for (int64_t t = 0; t < shape.time; ++t) {
    for (int64_t d = 0; d < shape.size; ++d) to[d * columns + t] = widened(from[t * stride + d]);
  }
}

template <typename T>
void write_row(const float* from, float factor, T* to, int64_t size) {
  for (int64_t d = 0; d < size; ++d) narrow(from[d] * factor, to[d]);
}

// What is seen: keys up to the query, of the window, and of the mask (time, time), if there is one.
struct Seen {
  int64_t time, window;
  const bool* mask;

  int64_t first(int64_t query) const { return std::max<int64_t>(0, query - window + 1) / LANES * LANES; }

  // Sets scores of the keys [first, end) that a block's queries do not see to minus infinity.
  void hide(float* scores, int64_t stride, int64_t start, int64_t first, int64_t end) const {
    constexpr float HIDDEN = -std::numeric_limits<float>::infinity();
    for (int64_t i = start; i < start + BLOCK; ++i, scores += stride) {
      for (int64_t j = std::max(first, i + 1); j < end; ++j) scores[j - first] = HIDDEN;
      for (int64_t j = first; j < std::min(end, i - window + 1); ++j) scores[j - first] = HIDDEN;
      if (mask == nullptr || i >= time) continue;
      for (int64_t j = first; j < std::min(end, time); ++j) {
        if (!mask[i * time + j]) scores[j - first] = HIDDEN;
      }
    }
  }
};

template <typename T>
void forward(Heads<const T> q, Heads<const T> k, Heads<const T> v, const bool* mask, T* y, float* normalisers,
             Shape shape, float scale, int64_t window, int threads) {
  const int64_t time = rounded_up(shape.time, 2 * LANES), size = rounded_up(shape.size, LANES), all = time * size;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> room(3 * all + BLOCK * (time + size));
    float *queries = room.data(), *keys = queries + all, *values = keys + all;
    float *scores = values + all, *outputs = scores + BLOCK * time;
#pragma omp for schedule(static)
    for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
      const int64_t b = head / shape.heads, h = head % shape.heads;
      const Seen seen{shape.time, window, mask ? mask + b * shape.time * shape.time : nullptr};
      read_rows(q.head(b, h), q.strides[1], shape, scale, queries, size);
      read_columns(k.head(b, h), k.strides[1], shape, keys, time);
      read_rows(v.head(b, h), v.strides[1], shape, 1.0f, values, size);
      for (int64_t start = 0; start < shape.time; start += BLOCK) {
        const int64_t first = seen.first(start), end = rounded_up(start + BLOCK, LANES), n = end - first;
        product<false>({queries + start * size, size, 1}, keys + first, time, scores, time, BLOCK, n, shape.size);
        seen.hide(scores, time, start, first, end);
        float sums[BLOCK];
        for (int64_t i = 0; i < BLOCK; ++i) {
          float* row = scores + i * time;
          Floats tops = load(row);
          for (int64_t j = LANES; j < n; j += LANES) tops = larger(load(row + j), tops);
          float top = tops[0];
          for (int lane = 1; lane < LANES; ++lane) top = std::max(top, tops[lane]);
          Floats parts = {};
          for (int64_t j = 0; j < n; j += LANES) {
            const Floats e = exp_of(load(row + j) - top);
            parts += e;
            store(row + j, e);
          }
          sums[i] = 0;
          for (int lane = 0; lane < LANES; ++lane) sums[i] += parts[lane];
          if (start + i < shape.time) normalisers[head * shape.time + start + i] = top + std::log(sums[i]);
        }
        product<false>({scores, time, 1}, values + first * size, size, outputs, size, BLOCK, size, n);
        for (int64_t i = 0; i < std::min(BLOCK, shape.time - start); ++i) {
          T* to = y + ((b * shape.time + start + i) * shape.heads + h) * shape.size;
          write_row(outputs + i * size, 1 / sums[i], to, shape.size);
        }
      }
    }
  }
}

template <typename T>
void backward(Heads<const T> grad, Heads<const T> q, Heads<const T> k, Heads<const T> v, const bool* mask, const T* y,
              const float* normalisers, T* q_grad, T* k_grad, T* v_grad, Shape shape, float scale, int64_t window,
              int threads) {
  const int64_t time = rounded_up(shape.time, 2 * LANES), size = rounded_up(shape.size, LANES), all = time * size;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> room(7 * all + BLOCK * (2 * time + size));
    float *grads = room.data(), *queries = grads + all, *keys = queries + all, *by_size = keys + all;
    float *values = by_size + all, *k_grads = values + all, *v_grads = k_grads + all;
    float *p = v_grads + all, *s_grads = p + BLOCK * time, *q_grads = s_grads + BLOCK * time;
#pragma omp for schedule(static)
    for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
      const int64_t b = head / shape.heads, h = head % shape.heads;
      const Seen seen{shape.time, window, mask ? mask + b * shape.time * shape.time : nullptr};
      read_rows(grad.head(b, h), grad.strides[1], shape, 1.0f, grads, size);
      read_rows(q.head(b, h), q.strides[1], shape, scale, queries, size);
      read_rows(k.head(b, h), k.strides[1], shape, 1.0f, keys, size);
      read_columns(k.head(b, h), k.strides[1], shape, by_size, time);
      read_columns(v.head(b, h), v.strides[1], shape, values, time);
      std::fill(k_grads, k_grads + 2 * all, 0.0f);
      for (int64_t start = 0; start < shape.time; start += BLOCK) {
        const int64_t first = seen.first(start), end = rounded_up(start + BLOCK, LANES), n = end - first;
        const float *of_queries = queries + start * size, *of_grads = grads + start * size;
        product<false>({of_queries, size, 1}, by_size + first, time, p, time, BLOCK, n, shape.size);
        seen.hide(p, time, start, first, end);
        product<false>({of_grads, size, 1}, values + first, time, s_grads, time, BLOCK, n, shape.size);
        for (int64_t i = 0; i < BLOCK; ++i) {
          const int64_t query = start + i;
          if (query >= shape.time) {  // no query: its scores have no normaliser
            std::fill_n(p + i * time, n, 0.0f);
            std::fill_n(s_grads + i * time, n, 0.0f);
            continue;
          }
          const T* output = y + ((b * shape.time + query) * shape.heads + h) * shape.size;
          float sum = 0;  // of p dp over the keys
          for (int64_t d = 0; d < shape.size; ++d) sum += widened(output[d]) * of_grads[i * size + d];
          const float normaliser = normalisers[head * shape.time + query];
          for (int64_t j = i * time; j < i * time + n; j += LANES) {
            const Floats e = exp_of(load(p + j) - normaliser);
            store(p + j, e);
            store(s_grads + j, e * (load(s_grads + j) - sum));
          }
        }
        product<false>({s_grads, time, 1}, keys + first * size, size, q_grads, size, BLOCK, size, n);
        product<true>({s_grads, 1, time}, of_queries, size, k_grads + first * size, size, n, size, BLOCK);
        product<true>({p, 1, time}, of_grads, size, v_grads + first * size, size, n, size, BLOCK);
        for (int64_t i = 0; i < std::min(BLOCK, shape.time - start); ++i) {
          T* to = q_grad + ((b * shape.time + start + i) * shape.heads + h) * shape.size;
          write_row(q_grads + i * size, scale, to, shape.size);
        }
      }
      for (int64_t t = 0; t < shape.time; ++t) {
        const int64_t row = ((b * shape.time + t) * shape.heads + h) * shape.size;
        write_row(k_grads + t * size, 1.0f, k_grad + row, shape.size);
        write_row(v_grads + t * size, 1.0f, v_grad + row, shape.size);
      }
    }
  }
}

}  // namespace zoo

// The strides are those of q, k, v (and before them of the gradient): three of each, of batch, time and heads.
#define ATTENTION(NAME, T)                                                                                        \
  void attention_##NAME(const T* q, const T* k, const T* v, const bool* mask, T* y, float* normalisers,           \
                        const int64_t* sizes, const int64_t* strides, float scale, int64_t window, int threads) { \
    zoo::forward<T>({q, strides}, {k, strides + 3}, {v, strides + 6}, mask, y, normalisers,                       \
                    {sizes[0], sizes[1], sizes[2], sizes[3]}, scale, window, threads);                            \
  }                                                                                                               \
  void attention_backward_##NAME(const T* grad, const T* q, const T* k, const T* v, const bool* mask, const T* y, \
                                 const float* normalisers, T* q_grad, T* k_grad, T* v_grad,                       \
                                 const int64_t* sizes, const int64_t* strides, float scale, int64_t window,       \
                                 int threads) {                                                                   \
    zoo::backward<T>({grad, strides}, {q, strides + 3}, {k, strides + 6}, {v, strides + 9}, mask, y, normalisers, \
                     q_grad, k_grad, v_grad, {sizes[0], sizes[1], sizes[2], sizes[3]}, scale, window, threads);   \
  }

extern "C" {
ATTENTION(f32, float)
ATTENTION(bf16, zoo::bfloat16)
}
