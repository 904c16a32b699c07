// The softmax of every row of logits, its logarithmic normaliser, and the gradient of cross entropy: a row is
// read from memory once, and stays in the cache until its gradient is written. The formulas are those of
// softmax.py, which the tests compare this file with.

#include "vectors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace zoo {

constexpr int64_t IGNORE_INDEX = -1;  // that of softmax.py

template <typename T>
void softmax_gradient(const T* logits, const int64_t* targets, float z_loss, T* gradient, float* normalisers,
                      float* target_logits, int64_t rows, int64_t vocab, int threads) {
  const int64_t padded = (vocab + LANES - 1) / LANES * LANES;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> row(padded, -std::numeric_limits<float>::infinity());
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const T* from = logits + i * vocab;
      for (int64_t j = 0; j < vocab; ++j) row[j] = widened(from[j]);
      Floats tops = load(row.data());
      for (int64_t j = LANES; j < padded; j += LANES) tops = larger(load(&row[j]), tops);
      float top = tops[0];
      for (int lane = 1; lane < LANES; ++lane) top = std::max(top, tops[lane]);
      const int64_t target = targets[i];
      const bool counted = 0 <= target && target < vocab;
      // Nobody has checked the targets of a compiled graph: what is no target makes a loss that is no number.
      const float uncounted = target == IGNORE_INDEX ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      target_logits[i] = counted ? row[target] : uncounted;
      Floats sums = {};
      for (int64_t j = 0; j < padded; j += LANES) {
        const Floats e = exp_of(load(&row[j]) - top);
        sums += e;
        store(&row[j], e);
      }
      double sum = 0;
      for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
      normalisers[i] = top + float(std::log(sum));
      const float factor = counted ? float((1 + 2.0 * z_loss * normalisers[i]) / sum) : uncounted;
      T* to = gradient + i * vocab;
      for (int64_t j = 0; j < vocab; ++j) narrow(row[j] * factor, to[j]);
      if (counted) narrow(row[target] * factor - 1.0f, to[target]);
      for (int64_t j = vocab; j < padded; ++j) row[j] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace zoo

extern "C" {

void softmax_gradient_f32(const float* logits, const int64_t* targets, float z_loss, float* gradient,
                          float* normalisers, float* target_logits, int64_t rows, int64_t vocab, int threads) {
  zoo::softmax_gradient(logits, targets, z_loss, gradient, normalisers, target_logits, rows, vocab, threads);
}

void softmax_gradient_bf16(const zoo::bfloat16* logits, const int64_t* targets, float z_loss,
                           zoo::bfloat16* gradient, float* normalisers, float* target_logits, int64_t rows,
                           int64_t vocab, int threads) {
  zoo::softmax_gradient(logits, targets, z_loss, gradient, normalisers, target_logits, rows, vocab, threads);
}
}
