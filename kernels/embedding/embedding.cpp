#include "kernels/embedding/embedding.h"

#include <algorithm>

#include "core/parallel.h"

namespace hebb::cpu {

void run(Stream&, const EmbeddingForward& args) {
  dispatch_real(args.table.dtype, [&]<class S>(S) {
    const int64_t d = args.table.size(1);
    const int32_t* ids = args.ids.as<int32_t>();
    const S* table = args.table.as<S>();
    S* y = args.y.as<S>();
    parallel_each(args.ids.numel(), 64, [&](int64_t t) { std::copy_n(table + ids[t] * d, d, y + t * d); });
  });
}

void run(Stream&, const EmbeddingBackward& args) {
  dispatch_real(args.d_table.dtype, [&]<class S>(S) {
    const int64_t d = args.d_table.size(1), n = args.ids.numel();
    const int32_t* ids = args.ids.as<int32_t>();
    const S* d_y = args.d_y.as<S>();
    S* d_table = args.d_table.as<S>();
    // Threads own column slices, so that every row sums its tokens in order.
    parallel_for(d, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < n; ++t) {
        S* to = d_table + ids[t] * d;
        const S* from = d_y + t * d;
        for (int64_t i = begin; i < end; ++i) { to[i] += from[i]; }
      }
    });
  });
}

}  // namespace hebb::cpu
