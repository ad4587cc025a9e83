#include "kernels/add/add.h"

#include "core/parallel.h"

namespace hebb::cpu {

void run(Stream&, const AddScaled& a) {
  dispatch_real(a.y.dtype, [&]<class S>(S) {
    S* y = a.y.as<S>();
    const S* x = a.x.as<S>();
    const S alpha = static_cast<S>(a.alpha);
    parallel_for(a.y.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      if (a.accumulate) {
        for (int64_t i = begin; i < end; ++i) { y[i] += alpha * x[i]; }
      } else {
        for (int64_t i = begin; i < end; ++i) { y[i] = alpha * x[i]; }
      }
    });
  });
}

}  // namespace hebb::cpu
