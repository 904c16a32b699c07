// The fused Amos step on the CPU: every row is read from memory once, and its mean square, slots
// and update are done while it is in the cache. The formulas are those of amos_update.py, which is
// the reference that the tests compare this file with.

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

namespace {

constexpr int64_t LANES = 64;

// Entries one thread takes at a time: long runs keep the memory's prefetchers busy, and there have
// to be enough of them to share out.
int64_t block_of(at::TensorList tensors) {
  int64_t entries = 0;
  for (const at::Tensor& tensor : tensors) entries += tensor.numel();
  return std::clamp<int64_t>(entries / (8 * at::get_num_threads()), 1 << 15, 1 << 20);
}

// Runs work(tensor, first, last) over [0, lengths[tensor]) in steps, spread over torch's threads.
// Blocks are handed out as threads become free, so a busy neighbour on one core does not stall the step.
template <typename Work>
void over_blocks(const std::vector<int64_t>& lengths, const std::vector<int64_t>& steps, const Work& work) {
  std::vector<int64_t> starts{0};
  for (size_t i = 0; i < lengths.size(); ++i) {
    starts.push_back(starts.back() + (lengths[i] + steps[i] - 1) / steps[i]);
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    for (int64_t block = next++; block < starts.back(); block = next++) {
      const size_t i = std::upper_bound(starts.begin(), starts.end(), block) - starts.begin() - 1;
      const int64_t first = (block - starts[i]) * steps[i];
      work(i, first, std::min(first + steps[i], lengths[i]));
    }
  });
}

template <typename acc_t>
acc_t clipped(acc_t x, acc_t limit) {
  return x < -limit ? -limit : (x > limit ? limit : x);  // NaN stays NaN
}

// theta <- theta + delta with delta = grad_factor * g + weight_factor * theta, or its average m.
template <typename scalar_t, typename acc_t>
void update(scalar_t* theta, const scalar_t* g, acc_t* m, int64_t n, acc_t grad_factor, acc_t weight_factor,
            acc_t momentum, acc_t clip) {
  if (m == nullptr) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const acc_t x = theta[j];
      theta[j] = x + (grad_factor * clipped<acc_t>(g[j], clip) + weight_factor * x);
    }
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const acc_t x = theta[j];
      const acc_t delta = grad_factor * clipped<acc_t>(g[j], clip) + weight_factor * x;
      m[j] = momentum * m[j] + (1 - momentum) * delta;
      theta[j] = x + m[j];
    }
  }
}

template <typename scalar_t, typename acc_t>
acc_t mean_square(const scalar_t* g, int64_t n, acc_t clip) {
  acc_t sums[LANES] = {};  // independent sums keep the vector units busy and the rounding error small
  int64_t j = 0;
  for (; j + LANES <= n; j += LANES) {
#pragma omp simd
    for (int64_t k = 0; k < LANES; ++k) {
      const acc_t x = clipped<acc_t>(g[j + k], clip);
      sums[k] += x * x;
    }
  }
  for (; j < n; ++j) {
    const acc_t x = clipped<acc_t>(g[j], clip);
    sums[j % LANES] += x * x;
  }
  return std::accumulate(sums, sums + LANES, acc_t(0)) / n;
}

double limit_of(std::optional<double> clip) { return clip.value_or(std::numeric_limits<double>::infinity()); }

// Algorithm 1 for tensors whose slots v and b are shared over trailing dimensions: (rows, columns)
// tensors with one slot per row. All in place.
void step_rows(at::TensorList thetas, at::TensorList grads, at::TensorList vs, at::TensorList bs, at::TensorList ms,
               double lr, double eta, double beta, double correction, double momentum, std::optional<double> clip_value,
               double extra_l2, double c_coef, double d_coef, double tiny) {
  std::vector<int64_t> rows, steps;
  const int64_t block = block_of(thetas);
  for (size_t i = 0; i < thetas.size(); ++i) {
    rows.push_back(vs[i].numel());
    steps.push_back(std::max<int64_t>(1, block * rows.back() / std::max<int64_t>(1, thetas[i].numel())));
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, thetas[0].scalar_type(), "amos_step_rows", [&] {
    using acc_t = at::opmath_type<scalar_t>;
    const acc_t clip = limit_of(clip_value);
    const acc_t c_factor = c_coef * std::sqrt(lr), d_factor = d_coef * std::sqrt(lr * eta);
    over_blocks(rows, steps, [&](size_t i, int64_t first, int64_t last) {
      const int64_t columns = thetas[i].numel() / rows[i];
      scalar_t* theta = thetas[i].data_ptr<scalar_t>();
      const scalar_t* g = grads[i].const_data_ptr<scalar_t>();
      acc_t* m = ms.empty() ? nullptr : ms[i].data_ptr<acc_t>();
      acc_t* v = vs[i].data_ptr<acc_t>();
      acc_t* b = bs[i].data_ptr<acc_t>();
      for (int64_t row = first; row < last; ++row) {
        const int64_t at = row * columns;
        const acc_t square = mean_square<scalar_t, acc_t>(g + at, columns, clip);
        v[row] = acc_t(beta) * v[row] + acc_t(1 - beta) * square;
        const acc_t v_hat = std::max(v[row], acc_t(tiny)) / acc_t(correction);
        const acc_t c = 1 / std::sqrt(1 + c_factor * b[row]);
        const acc_t d = 1 / (1 + d_factor * b[row]);
        const acc_t gamma = c * acc_t(lr * lr) * (square / v_hat);
        b[row] += gamma * (1 + b[row]);
        update<scalar_t, acc_t>(theta + at, g + at, m ? m + at : nullptr, columns, -d * acc_t(lr * eta) / std::sqrt(v_hat),
                                -d * (gamma / 2 + acc_t(extra_l2)), momentum, clip);
      }
    });
  });
}

// The last two lines of Algorithm 1 for slots that were updated elsewhere: one factor per row.
void apply_rows(at::TensorList thetas, at::TensorList grads, at::TensorList grad_factors,
                at::TensorList weight_factors, at::TensorList ms, double momentum, std::optional<double> clip_value) {
  std::vector<int64_t> lengths;
  for (const at::Tensor& theta : thetas) lengths.push_back(theta.numel());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, thetas[0].scalar_type(), "amos_apply_rows", [&] {
    using acc_t = at::opmath_type<scalar_t>;
    const acc_t clip = limit_of(clip_value);
    over_blocks(lengths, std::vector<int64_t>(lengths.size(), block_of(thetas)), [&](size_t i, int64_t first, int64_t last) {
      const int64_t columns = lengths[i] / grad_factors[i].numel();
      scalar_t* theta = thetas[i].data_ptr<scalar_t>();
      const scalar_t* g = grads[i].const_data_ptr<scalar_t>();
      acc_t* m = ms.empty() ? nullptr : ms[i].data_ptr<acc_t>();
      for (int64_t at = first; at < last;) {
        const int64_t row = at / columns, end = std::min(last, (row + 1) * columns);
        update<scalar_t, acc_t>(theta + at, g + at, m ? m + at : nullptr, end - at,
                                grad_factors[i].const_data_ptr<acc_t>()[row],
                                weight_factors[i].const_data_ptr<acc_t>()[row], momentum, clip);
        at = end;
      }
    });
  });
}

}  // namespace

TORCH_LIBRARY(zoo_amos, library) {
  library.def(
      "step_rows(Tensor(a!)[] thetas, Tensor[] grads, Tensor(b!)[] vs, Tensor(c!)[] bs, Tensor(d!)[] ms, float lr, "
      "float eta, float beta, float correction, float momentum, float? clip_value, float extra_l2, float c_coef, "
      "float d_coef, float tiny) -> ()");
  library.def(
      "apply_rows(Tensor(a!)[] thetas, Tensor[] grads, Tensor[] grad_factors, Tensor[] weight_factors, "
      "Tensor(b!)[] ms, float momentum, float? clip_value) -> ()");
}

TORCH_LIBRARY_IMPL(zoo_amos, CPU, library) {
  library.impl("step_rows", &step_rows);
  library.impl("apply_rows", &apply_rows);
}
