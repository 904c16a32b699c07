// Vectors of the processor's width, and what the other files compute with them. Plain C++ with
// the vector types of GCC and Clang: no header of torch, so that compiling takes a second or two.

#pragma once

#include <cstdint>
#include <cstring>

namespace zoo {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

template <int N>
struct Vectors {
  typedef float Floats __attribute__((vector_size(N * sizeof(float))));
  typedef uint32_t Words __attribute__((vector_size(N * sizeof(uint32_t))));
  typedef uint16_t Halves __attribute__((vector_size(N * sizeof(uint16_t))));
};

typedef Vectors<LANES>::Floats Floats;
typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(int32_t))));

// bfloat16 is the upper half of a float.
using bfloat16 = uint16_t;

template <typename To, typename From>
inline To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits stay");
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

inline float widened(float x) { return x; }

inline float widened(bfloat16 x) { return bits_of<float>(uint32_t(x) << 16); }

template <int N = LANES>
inline typename Vectors<N>::Floats load(const float* from) {
  typename Vectors<N>::Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

template <int N = LANES>
inline typename Vectors<N>::Floats load(const bfloat16* from) {
  typename Vectors<N>::Halves x;
  std::memcpy(&x, from, sizeof x);
  return bits_of<typename Vectors<N>::Floats>(__builtin_convertvector(x, typename Vectors<N>::Words) << 16);
}

inline void narrow(float x, float& to) { to = x; }

inline void narrow(float x, bfloat16& to) {  // to the nearest, ties to even
  const uint32_t bits = bits_of<uint32_t>(x);
  to = x != x ? 0x7fc0 : bfloat16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <int N = LANES>
inline void store(float* to, typename Vectors<N>::Floats x) {
  std::memcpy(to, &x, sizeof x);
}

template <int N = LANES>
inline void store(bfloat16* to, typename Vectors<N>::Floats x) {  // as `narrow`
  typedef typename Vectors<N>::Words Words;
  const Words bits = bits_of<Words>(x);
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const auto y = __builtin_convertvector(x != x ? Words{} + 0x7fc0 : rounded, typename Vectors<N>::Halves);
  std::memcpy(to, &y, sizeof y);
}

inline Floats larger(Floats x, Floats y) { return x > y ? x : y; }

// e^x for x <= 0, within two units of the last place; 0 where that is no normal number; NaN stays NaN.
// e^x = 2^n e^r with |r| <= ln 2 / 2. The polynomial for e^r is that of the Cephes library.
inline Floats exp_of(Floats x) {
  constexpr float WHOLE = 12582912.0f;  // 1.5 2^23: a sum with it is rounded to whole numbers, n in its low bits
  const Floats shifted = x * 1.44269504088896341f + WHOLE;
  const Floats n = shifted - WHOLE;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Floats power = bits_of<Floats>((bits_of<Ints>(shifted) + 127) << 23);
  return x < -87.0f ? Floats{} : p * power;
}

}  // namespace zoo
