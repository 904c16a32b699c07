// Vectors of the processor's width, and what attention.cpp and softmax.cpp compute with them. Plain C++ with
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

typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(int32_t))));

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline Floats larger(Floats x, Floats y) { return x > y ? x : y; }

// bfloat16 is the upper half of a float.
using bfloat16 = uint16_t;

inline float widened(float x) { return x; }

inline float widened(bfloat16 x) {
  const uint32_t bits = uint32_t(x) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

inline void narrow(float x, float& to) { to = x; }

inline void narrow(float x, bfloat16& to) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  to = x != x ? 0x7fc0 : bfloat16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// e^x for x <= 0, within two units of the last place; 0 where that is no normal number; NaN stays NaN.
// e^x = 2^n e^r with |r| <= ln 2 / 2. The polynomial for e^r is that of the Cephes library.
inline Floats exp_of(Floats x) {
  const Ints vanishes = x < -87.0f;
  const Floats kept = vanishes ? Floats{} : x;
  const Ints n = __builtin_convertvector(kept * 1.44269504088896341f - 0.5f, Ints);  // cut towards 0: rounded
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = (kept - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Ints exponent = (n + 127) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  return vanishes ? Floats{} : p * power;
}

}  // namespace zoo
