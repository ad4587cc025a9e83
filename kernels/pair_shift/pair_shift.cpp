#include "kernels/pair_shift/pair_shift.h"

#include <algorithm>

#include "core/parallel.h"
#include "kernels/common/formulas.h"
#include "kernels/pair_shift/scratch.h"

namespace hebb {

PairShiftBackwardScratch plan(Workspace& workspace, const PairShiftBackward& args) {
  if (workspace.on_gpu()) { return {}; }
  return {.partial = workspace.tensor({args.v.size(0)}, DType::f64, "shift sums")};
}
HEBB_KERNEL_PLANNED(PairShiftBackward)

namespace cpu {

void run(Stream&, const PairShiftForward& a) {
  dispatch_real(a.k.dtype, [&]<class S>(S) {
    const int64_t length = a.k.size(1), keys = a.k.size(2), values = a.v.size(2);
    const int32_t* doc_start = a.doc_start.as<int32_t>();
    const S s = sigmoid(a.shift.as<S>()[0]);
    parallel_each(a.k.size(0) * length, 32, [&](int64_t i) {
      const int64_t t = i % length, row = i / length;
      S *k_out = a.k_out.as<S>() + i * keys, *v_out = a.v_out.as<S>() + i * values;
      const S *k = a.k.as<S>() + i * keys, *v = a.v.as<S>() + i * values;
      if (doc_start[i] >= t) {
        std::fill_n(k_out, keys, S(0));
        for (int64_t c = 0; c < values; ++c) { v_out[c] = (S(1) - s) * v[c]; }
        return;
      }
      const S* k_before = t > 0 ? k - keys : a.previous_k.as<S>() + row * keys;
      const S* v_before = t > 0 ? v - values : a.previous_v.as<S>() + row * values;
      std::copy_n(k_before, keys, k_out);
      for (int64_t c = 0; c < values; ++c) { v_out[c] = s * v_before[c] + (S(1) - s) * v[c]; }
    });
  });
}

void run(Stream&, const PairShiftBackward& a, const PairShiftBackwardScratch& scratch) {
  dispatch_real(a.v.dtype, [&]<class S>(S) {
    const int64_t batch = a.v.size(0), length = a.v.size(1), keys = a.d_k_out.size(2), values = a.v.size(2);
    const int32_t* doc_start = a.doc_start.as<int32_t>();
    const S s = sigmoid(a.shift.as<S>()[0]);
    parallel_each(batch, 1, [&](int64_t row) {
      double sum = 0;
      for (int64_t t = 0; t < length; ++t) {
        const int64_t i = row * length + t;
        const bool feeds_next = t + 1 < length && doc_start[i + 1] <= t;
        const S *d_k_out = a.d_k_out.as<S>() + i * keys, *d_v_out = a.d_v_out.as<S>() + i * values;
        const S *v = a.v.as<S>() + i * values, *v_before = doc_start[i] < t ? v - values : nullptr;
        for (int64_t c = 0; a.d_k.defined() && c < keys; ++c) {
          put(a.d_k.as<S>()[i * keys + c], feeds_next ? d_k_out[keys + c] : S(0), a.accumulate_k);
        }
        for (int64_t c = 0; a.d_v.defined() && c < values; ++c) {
          const S next = feeds_next ? d_v_out[values + c] : S(0);
          put(a.d_v.as<S>()[i * values + c], (S(1) - s) * d_v_out[c] + s * next, a.accumulate_v);
        }
        sum += static_cast<double>(lane_sum<S>(
            values, [&](int64_t c) { return d_v_out[c] * ((v_before != nullptr ? v_before[c] : S(0)) - v[c]); }));
      }
      scratch.partial.as<double>()[row] = sum;
    });
    if (a.d_shift.defined()) {
      double sum = 0;
      for (int64_t row = 0; row < batch; ++row) { sum += scratch.partial.as<double>()[row]; }
      a.d_shift.as<S>()[0] += static_cast<S>(sum) * s * (S(1) - s);
    }
  });
}

}  // namespace cpu
}  // namespace hebb
