#include "kernels/bias/bias.h"

#include "core/parallel.h"

namespace hebb::cpu {

void run(Stream&, const AddBias& a) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    const int64_t n = a.bias.numel(), rows = a.y.numel() / n;
    const S* bias = a.bias.as<S>();
    parallel_each(rows, 64, [&](int64_t r) {
      S* y = a.y.as<S>() + r * n;
      for (int64_t i = 0; i < n; ++i) { y[i] += bias[i]; }
    });
  });
}

void run(Stream&, const ColumnSums& a) {
  dispatch_real(a.x.dtype, [&]<class S>(S) {
    const int64_t n = a.out.numel(), rows = a.x.numel() / n;
    S* out = a.out.as<S>();
    parallel_for(n, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = 0; r < rows; ++r) {
        const S* x = a.x.as<S>() + r * n;
        for (int64_t i = begin; i < end; ++i) { out[i] += x[i]; }
      }
    });
  });
}

}  // namespace hebb::cpu
