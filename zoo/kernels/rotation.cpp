// Rotary position embedding: rotates the pairs (i, i + half) of every head. The formula is that of rotation.py,
// which the tests compare this file with.

#include "vectors.h"

namespace zoo {

// What the entries of a row are multiplied by: themselves by the cosine, and those of the other half by `first`
// in the first half and by `second` in the second.
struct Angles {
  const float *cosines, *first, *second;
};

template <int N, typename T>
inline void rotate_row(const T* x, Angles by, T* y, int64_t half) {
  for (int64_t i = 0; i < half; i += N) {
    const auto left = load<N>(x + i), right = load<N>(x + half + i), cosines = load<N>(by.cosines + i);
    store<N>(y + i, left * cosines + right * load<N>(by.first + i));
    store<N>(y + half + i, right * cosines + left * load<N>(by.second + i));
  }
}

// x has the strides of batch, time and heads, y is contiguous; the angles are (batch or 1, time, half) and
// (batch or 1, time, 2, half), with the sines of the first halves before those of the second.
template <typename T>
void rotate(const T* x, const float* cosines, const float* sines, T* y, const int64_t* sizes, const int64_t* strides,
            bool of_rows, bool back, int threads) {
  const int64_t batch = sizes[0], time = sizes[1], heads = sizes[2], half = sizes[3] / 2;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t row = 0; row < batch * time; ++row) {
    const int64_t b = row / time, t = row % time, angle = (of_rows ? row : t) * half;
    const float *first = sines + 2 * angle, *second = first + half;
    const Angles by{cosines + angle, back ? second : first, back ? first : second};
    for (int64_t head = 0; head < heads; ++head) {
      const T* from = x + b * strides[0] + t * strides[1] + head * strides[2];
      T* to = y + (row * heads + head) * 2 * half;
      if (half % LANES == 0) {
        rotate_row<LANES>(from, by, to, half);
      } else if (half % 8 == 0) {
        rotate_row<8>(from, by, to, half);
      } else if (half % 4 == 0) {
        rotate_row<4>(from, by, to, half);
      } else {
        rotate_row<1>(from, by, to, half);
      }
    }
  }
}

}  // namespace zoo

#define ROTATION(NAME, T)                                                                                 \
  void rotation_##NAME(const T* x, const float* cosines, const float* sines, T* y, const int64_t* sizes,  \
                       const int64_t* strides, bool of_rows, bool back, int threads) {                    \
    zoo::rotate(x, cosines, sines, y, sizes, strides, of_rows, back, threads);                            \
  }

extern "C" {
ROTATION(f32, float)
ROTATION(bf16, zoo::bfloat16)
}
