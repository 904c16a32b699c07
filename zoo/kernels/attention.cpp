// Causal softmax attention of short sequences, forward and backward, one head at a time: a head's keys and
// values stay in the cache, the scores of a block of queries as well, and scores that no query sees are not
// computed beyond a block's end. The scores of a block lie key by key, so that the lanes of a vector are
// queries, and no sum over keys crosses lanes. All sums are in float. The formulas are those of
// short_attention.py, which the tests compare this file with.

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

  T* row(int64_t batch, int64_t head, int64_t t) const {
    return data + batch * strides[0] + t * strides[1] + head * strides[2];
  }
};

struct Shape {
  int64_t batch, time, heads, size;
};

template <typename T>
inline void read_row(const T* from, float factor, float* to, int64_t size) {
  int64_t d = 0;
  for (; d + LANES <= size; d += LANES) store(to + d, load(from + d) * factor);
  for (; d < size; ++d) to[d] = widened(from[d]) * factor;
}

template <typename T>
inline void write_row(const float* from, float factor, T* to, int64_t size) {
  int64_t d = 0;
  for (; d + LANES <= size; d += LANES) store(to + d, load(from + d) * factor);
  for (; d < size; ++d) narrow(from[d] * factor, to[d]);
}

// One head of a tensor, in rows of `columns` floats.
template <typename T>
void read_head(Heads<const T> x, int64_t batch, int64_t head, Shape shape, float* to, int64_t columns) {
  for (int64_t t = 0; t < shape.time; ++t) read_row(x.row(batch, head, t), 1.0f, to + t * columns, shape.size);
}

// The rows of a block of queries, and the same transposed; those beyond the last query are 0.
template <typename T>
void read_block(Heads<const T> x, int64_t batch, int64_t head, int64_t start, Shape shape, float factor,
                float* rows, int64_t columns, float* transposed) {
  for (int64_t i = 0; i < BLOCK; ++i) {
    float* row = rows + i * columns;
    if (start + i < shape.time) {
      read_row(x.row(batch, head, start + i), factor, row, shape.size);
    } else {
      std::fill_n(row, shape.size, 0.0f);
    }
  }
  for (int64_t d = 0; d < shape.size; ++d) {
    for (int64_t i = 0; i < BLOCK; ++i) transposed[d * BLOCK + i] = rows[i * columns + d];
  }
}

// What is seen: keys up to the query, of the window, and of the mask (time, time), if there is one.
struct Seen {
  int64_t time, window;
  const bool* mask;

  int64_t first(int64_t query) const { return std::max<int64_t>(0, query - window + 1) / LANES * LANES; }

  // Sets scores of the keys [first, end) that a block's queries do not see to minus infinity.
  void hide(float* scores, int64_t start, int64_t first, int64_t end) const {
    constexpr float HIDDEN = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < BLOCK; ++i) {
      const int64_t query = start + i;
      float* of_query = scores + i - first * BLOCK;
      for (int64_t j = std::max(first, query + 1); j < end; ++j) of_query[j * BLOCK] = HIDDEN;
      for (int64_t j = first; j < std::min(end, query - window + 1); ++j) of_query[j * BLOCK] = HIDDEN;
      if (mask == nullptr || query >= time) continue;
      for (int64_t j = first; j < std::min(end, time); ++j) {
        if (!mask[query * time + j]) of_query[j * BLOCK] = HIDDEN;
      }
    }
  }
};

template <typename T>
void forward(Heads<const T> q, Heads<const T> k, Heads<const T> v, const bool* mask, T* y, float* normalisers,
             Shape shape, float scale, int64_t window, int threads) {
  const int64_t time = rounded_up(shape.time, BLOCK), size = rounded_up(shape.size, LANES), all = time * size;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> room(2 * all + BLOCK * (time + 3 * size));
    float *keys = room.data(), *values = keys + all, *scores = values + all, *outputs = scores + BLOCK * time;
    float *queries = outputs + BLOCK * size, *by_size = queries + BLOCK * size;
#pragma omp for schedule(static)
    for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
      const int64_t b = head / shape.heads, h = head % shape.heads;
      const Seen seen{shape.time, window, mask ? mask + b * shape.time * shape.time : nullptr};
      read_head(k, b, h, shape, keys, size);
      read_head(v, b, h, shape, values, size);
      for (int64_t start = 0; start < shape.time; start += BLOCK) {
        const int64_t first = seen.first(start), end = start + BLOCK, n = end - first;
        read_block(q, b, h, start, shape, scale, queries, size, by_size);
        product<false>({keys + first * size, size, 1}, by_size, BLOCK, scores, BLOCK, n, BLOCK, shape.size);
        seen.hide(scores, start, first, end);
        float tops[BLOCK], sums[BLOCK];
        for (int64_t i = 0; i < BLOCK; i += LANES) {
          Floats top = load(scores + i);
          for (int64_t j = 1; j < n; ++j) top = larger(load(scores + j * BLOCK + i), top);
          Floats even = {}, odd = {};
          for (int64_t j = 0; j < n; j += 2) {
            float* at = scores + j * BLOCK + i;
            const Floats one = exp_of(load(at) - top), other = exp_of(load(at + BLOCK) - top);
            even += one;
            odd += other;
            store(at, one);
            store(at + BLOCK, other);
          }
          store(tops + i, top);
          store(sums + i, even + odd);
        }
        product<false>({scores, 1, BLOCK}, values + first * size, size, outputs, size, BLOCK, size, n);
        for (int64_t i = 0; i < std::min(BLOCK, shape.time - start); ++i) {
          normalisers[head * shape.time + start + i] = tops[i] + std::log(sums[i]);
          T* to = y + ((b * shape.time + start + i) * shape.heads + h) * shape.size;
          write_row(outputs + i * size, 1 / sums[i], to, shape.size);
        }
      }
    }
  }
}

template <typename T>
void backward(Heads<const T> grad, Heads<const T> q, Heads<const T> k, Heads<const T> v, const bool* mask,
              const float* normalisers, T* q_grad, T* k_grad, T* v_grad, Shape shape, float scale, int64_t window,
              int threads) {
  const int64_t time = rounded_up(shape.time, BLOCK), size = rounded_up(shape.size, LANES), all = time * size;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> room(4 * all + BLOCK * (2 * time + 5 * size));
    float *keys = room.data(), *values = keys + all, *k_grads = values + all, *v_grads = k_grads + all;
    float *p = v_grads + all, *s_grads = p + BLOCK * time, *q_grads = s_grads + BLOCK * time;
    float *queries = q_grads + BLOCK * size, *queries_by_size = queries + BLOCK * size;
    float *grads = queries_by_size + BLOCK * size, *grads_by_size = grads + BLOCK * size;
#pragma omp for schedule(static)
    for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
      const int64_t b = head / shape.heads, h = head % shape.heads;
      const Seen seen{shape.time, window, mask ? mask + b * shape.time * shape.time : nullptr};
      read_head(k, b, h, shape, keys, size);
      read_head(v, b, h, shape, values, size);
      std::fill(k_grads, k_grads + 2 * all, 0.0f);
      for (int64_t start = 0; start < shape.time; start += BLOCK) {
        const int64_t first = seen.first(start), end = start + BLOCK, n = end - first;
        read_block(q, b, h, start, shape, scale, queries, size, queries_by_size);
        read_block(grad, b, h, start, shape, 1.0f, grads, size, grads_by_size);
        product<false>({keys + first * size, size, 1}, queries_by_size, BLOCK, p, BLOCK, n, BLOCK, shape.size);
        seen.hide(p, start, first, end);
        product<false>({values + first * size, size, 1}, grads_by_size, BLOCK, s_grads, BLOCK, n, BLOCK, shape.size);
        constexpr float NO_QUERY = std::numeric_limits<float>::infinity();  // p is 0
        float tops[BLOCK];
        for (int64_t i = 0; i < BLOCK; ++i) {
          const int64_t query = start + i;
          tops[i] = query < shape.time ? normalisers[head * shape.time + query] : NO_QUERY;
        }
        for (int64_t i = 0; i < BLOCK; i += LANES) {
          const Floats top = load(tops + i);
          Floats sum = {};  // of p dp over the keys
          for (int64_t j = i; j < n * BLOCK; j += BLOCK) {
            const Floats e = exp_of(load(p + j) - top);
            store(p + j, e);
            sum += e * load(s_grads + j);
          }
          for (int64_t j = i; j < n * BLOCK; j += BLOCK) {
            store(s_grads + j, load(p + j) * (load(s_grads + j) - sum));
          }
        }
        product<false>({s_grads, 1, BLOCK}, keys + first * size, size, q_grads, size, BLOCK, size, n);
        product<true>({s_grads, BLOCK, 1}, queries, size, k_grads + first * size, size, n, size, BLOCK);
        product<true>({p, BLOCK, 1}, grads, size, v_grads + first * size, size, n, size, BLOCK);
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
  void attention_backward_##NAME(const T* grad, const T* q, const T* k, const T* v, const bool* mask,              \
                                 const float* normalisers, T* q_grad, T* k_grad, T* v_grad,                       \
                                 const int64_t* sizes, const int64_t* strides, float scale, int64_t window,       \
                                 int threads) {                                                                   \
    zoo::backward<T>({grad, strides}, {q, strides + 3}, {k, strides + 6}, {v, strides + 9}, mask, normalisers,    \
                     q_grad, k_grad, v_grad, {sizes[0], sizes[1], sizes[2], sizes[3]}, scale, window, threads);   \
  }

extern "C" {
ATTENTION(f32, float)
ATTENTION(bf16, zoo::bfloat16)
}
