#include "kernels/ham/ham.h"

#include "kernels/common/cuda/fast_divide.cuh"

// All bound by HBM but the selection: scores are read once, a few FLOPs an element. Selection: one block goes over the
// tokens of a list, 1024 at a time, bound by its barriers (a list of all rows has one block). Scores, decisions and
// factors are fp32.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kLengthEps = 1e-6f;
constexpr int kSelectThreads = 1024;

/// a . b of `count` elements by one warp, in every lane.
template <class T> __device__ __forceinline__ float row_dot(int64_t count, const T* a, const T* b, int lane) {
  return warp_sum_of(count, lane, [&](int64_t i) { return to_float(a[i]) * to_float(b[i]); });
}

/// One warp a token.
template <class T> struct Score {
  float* score;
  const T *p, *v;
  int64_t heads, dv;
  bool takes_max;

  __device__ void operator()(int64_t n, int lane) const {
    float best = 0;
    for (int64_t h = 0; h < heads; ++h) {
      const T *ph = p + (n * heads + h) * dv, *vh = v + (n * heads + h) * dv;
      const float lengths = sqrtf(row_dot(dv, ph, ph, lane)) * sqrtf(row_dot(dv, vh, vh, lane));
      const float e = 1.0f - row_dot(dv, ph, vh, lane) / (lengths + kLengthEps);
      best = h == 0 || (takes_max ? e > best : e < best) ? e : best;
    }
    if (lane == 0) { score[n] = best; }
  }
};

/// One warp a head of a token.
template <class T> struct Join {
  T* y;
  const T *p, *v, *x;
  int64_t heads, dv, d;

  __device__ void operator()(int64_t row, int lane) const {
    T* const to = y + row * (2 * dv + d);
    const T *ph = p + row * dv, *vh = v + row * dv, *from = x + row / heads * d;
    const float of_p = 1.0f / sqrtf(row_dot(dv, ph, ph, lane) + kLengthEps),
                of_v = 1.0f / sqrtf(row_dot(dv, vh, vh, lane) + kLengthEps);
    for (int64_t i = lane; i < dv; i += 32) {
      to[i] = from_float<T>(of_p * to_float(ph[i]));
      to[dv + i] = from_float<T>(of_v * to_float(vh[i]));
    }
    for (int64_t i = lane; i < d; i += 32) { to[2 * dv + i] = from[i]; }
  }
};

template <class T> struct JoinBackward {
  T* d_x;
  const T* d_y;
  int64_t heads, width, d;
  bool accumulate;

  __device__ void operator()(int64_t n, int64_t c) const {
    float sum = 0;
    for (int64_t h = 0; h < heads; ++h) { sum += to_float(d_y[(n * heads + h) * width + width - d + c]); }
    write(d_x[n * d + c], sum, accumulate);
  }
};

template <class T> struct GeluOf {
  T* y;
  const T* x;
  int64_t columns;

  __device__ void operator()(int64_t row, int64_t c) const {
    const float in = to_float(x[row * columns + c]);
    y[row * columns + c] = from_float<T>(in * normal_cdf(in));
  }
};

template <class T> struct GeluGradient {
  T* d_x;
  const T *d_y, *x;
  int64_t columns;
  bool accumulate;

  __device__ void operator()(int64_t row, int64_t c) const {
    const int64_t at = row * columns + c;
    const float in = to_float(x[at]), density = kNormalPeak<float> * expf(-0.5f * in * in);
    write(d_x[at], to_float(d_y[at]) * (normal_cdf(in) + in * density), accumulate);
  }
};

/// The share of a layer's own score; without previous scores 1.
__device__ __forceinline__ float own_share(const float* previous, const float* eda_logit) {
  return previous != nullptr ? sigmoid(*eda_logit) : 1.0f;
}

template <class T> struct Route {
  float *score, *own;
  int32_t* winner;
  const T* logits;
  const float *previous, *eda_logit;
  int64_t heads;
  bool takes_max;

  __device__ void operator()(int64_t, int64_t n) const {
    const T* const row = logits + n * heads;
    int64_t head = 0;
    for (int64_t h = 1; h < heads; ++h) {  // sigmoid is monotonic
      const float a = to_float(row[h]), b = to_float(row[head]);
      head = (takes_max ? a > b : a < b) ? h : head;
    }
    const float s = sigmoid(to_float(row[head])), gamma = own_share(previous, eda_logit);
    winner[n] = static_cast<int32_t>(head);
    own[n] = s;
    score[n] = previous != nullptr ? gamma * s + (1.0f - gamma) * previous[n] : s;
  }
};

template <class T> struct RouteBackward {
  T* d_logits;
  float* d_previous;
  const float *d_score, *own, *previous, *eda_logit;
  const int32_t* winner;
  int64_t heads;
  bool accumulate_logits, accumulate_previous;

  __device__ void operator()(int64_t, int64_t n) const {
    const float gamma = own_share(previous, eda_logit), d = d_score[n], s = own[n];
    for (int64_t h = 0; d_logits != nullptr && h < heads; ++h) {
      write(d_logits[n * heads + h], h == winner[n] ? d * gamma * s * (1.0f - s) : 0.0f, accumulate_logits);
    }
    if (d_previous != nullptr) { write(d_previous[n], (1.0f - gamma) * d, accumulate_previous); }
  }
};

/// d_eda_logit += gamma (1 - gamma) sum of d_score (own - previous), in double, by one block.
__global__ void __launch_bounds__(kSelectThreads)
    eda_gradient_kernel(float* d_eda_logit, const float* d_score, const float* own, const float* previous,
                        const float* eda_logit, int64_t tokens) {
  double sum = 0;
  for (int64_t n = threadIdx.x; n < tokens; n += blockDim.x) {
    sum += static_cast<double>(d_score[n]) * (static_cast<double>(own[n]) - static_cast<double>(previous[n]));
  }
  BlockReducer<double> reduce;
  sum = reduce.sum(sum);
  if (threadIdx.x == 0) {
    const float gamma = sigmoid(*eda_logit);
    *d_eda_logit += static_cast<float>(sum) * gamma * (1.0f - gamma);
  }
}

struct Select {
  int32_t *slot, *lo, *hi, *selected;
  const float *score, *threshold;
  const int32_t *forced, *held, *doc_start;
  int64_t length;
  Selecting selecting;
  float range, tau;

  __device__ bool takes(int64_t n, float limit) const {
    return forced != nullptr                   ? forced[n] != 0
           : selecting == Selecting::threshold ? score[n] >= limit
                                               : selecting == Selecting::all;
  }
};

// One block a list: slots and hi, by counting what was selected before.
__global__ void __launch_bounds__(kSelectThreads) select_kernel(Select a, int64_t tokens) {
  HEBB_SHARED(int[2][32], counts);  // of each warp; two buffers, so that one barrier a round is enough
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t first = blockIdx.x * tokens;
  const float limit = a.threshold != nullptr ? a.range * sigmoid(*a.threshold) : a.tau;
  int next = a.held != nullptr ? a.held[2 * blockIdx.x + 1] : 0, buffer = 0;
  for (int64_t done = 0; done < tokens; done += kSelectThreads, buffer ^= 1) {
    const int64_t i = done + threadIdx.x, n = first + i;
    const bool taken = i < tokens && a.takes(n, limit);
    const unsigned votes = __ballot_sync(kAllLanes, taken);
    if (lane == 0) { counts[buffer][warp] = __popc(votes); }
    __syncthreads();
    const int count = counts[buffer][lane];
    const int before = warp_sum(lane < warp ? count : 0), all = warp_sum(count);
    const int own = next + before + __popc(votes & ((1u << lane) - 1u));
    if (i < tokens) {
      a.slot[n] = taken ? own : -1;
      a.hi[n] = own + (taken ? 1 : 0);
    }
    next += all;
  }
}

/// lo: the slots taken before the token's document; and the rows' counts.
struct SelectFirst {
  Select a;

  __device__ int32_t before(int64_t n) const { return a.hi[n] - (a.slot[n] >= 0 ? 1 : 0); }
  __device__ void operator()(int64_t row, int64_t t) const {
    const int64_t begin = row * a.length;
    const int32_t start = a.doc_start[begin + t];
    a.lo[begin + t] = start >= 0 ? before(begin + start) : a.held != nullptr ? a.held[2 * row] : 0;
    if (t == 0) { a.selected[row] = a.hi[begin + a.length - 1] - before(begin); }
  }
};

template <class T> struct Pack {
  T* list;
  const T* x;
  const int32_t* slot;
  const float* factor;
  int64_t length, slots, channels;  // slots from row to row

  __device__ void operator()(int64_t n, int64_t c) const {
    const int32_t to = slot[n];
    if (to >= 0) {
      const float x_in = to_float(x[n * channels + c]);
      list[(Split(n, length).quotient * slots + to) * channels + c] =
          from_float<T>(factor != nullptr ? factor[n] * x_in : x_in);
    }
  }
};

/// One warp a token.
template <class T> struct Unpack {
  T* d_x;
  float* d_factor;
  const T *d_list, *x;
  const int32_t* slot;
  const float* factor;
  int64_t channels;
  bool accumulate_x, accumulate_factor;

  __device__ void operator()(int64_t n, int lane) const {
    const int32_t from = slot[n];
    const T* const d = d_list + from * channels;
    const float scale = factor != nullptr ? factor[n] : 1.0f;
    float along = 0;
    for (int64_t c = lane; c < channels; c += 32) {
      const float g = from >= 0 ? to_float(d[c]) : 0.0f;
      if (d_x != nullptr) { write(d_x[n * channels + c], scale * g, accumulate_x); }
      along += g * to_float(x[n * channels + c]);
    }
    if (d_factor != nullptr) {
      along = warp_sum(along);
      if (lane == 0) { write(d_factor[n], along, accumulate_factor); }
    }
  }
};

/// One thread: a handful of rows.
struct Count {
  int64_t* counter;
  const int32_t* selected;
  int64_t rows, tokens;

  __device__ void operator()(int64_t, int64_t) const {
    for (int64_t b = 0; b < rows; ++b) { counter[0] += selected[b]; }
    counter[1] += tokens;
  }
};

struct Steer {
  float* gradient;
  const int64_t* counters;
  int64_t layers;
  double target, gain, clip;

  __device__ void operator()(int64_t, int64_t) const {
    double sum = 0;
    for (int64_t i = 0; i < layers; ++i) {
      sum += static_cast<double>(counters[2 * i]) / static_cast<double>(counters[2 * i + 1]);
    }
    const double wanted = -gain * (sum / static_cast<double>(layers) - target);
    *gradient = static_cast<float>(wanted < -clip ? -clip : wanted > clip ? clip : wanted);
  }
};

}  // namespace

void run(Stream& stream, const PredictionScore& a) {
  dispatch_float(a.p.dtype, [&]<class T>(T) {
    each_warp("prediction_score", stream, a.p.size(0),
              Score<T>{a.score.as<float>(), a.p.as<T>(), a.v.as<T>(), a.p.size(1), a.p.size(2), a.takes_max});
  });
}

void run(Stream& stream, const RouterInput& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_warp("router_input", stream, a.p.size(0) * a.p.size(1),
              Join<T>{a.y.as<T>(), a.p.as<T>(), a.v.as<T>(), a.x.as<T>(), a.p.size(1), a.p.size(2), a.x.size(1)});
  });
}

void run(Stream& stream, const RouterInputBackward& a) {
  dispatch_float(a.d_x.dtype, [&]<class T>(T) {
    each_element(
        "router_input_backward", stream, a.d_x.size(0), a.d_x.size(1),
        JoinBackward<T>{a.d_x.as<T>(), a.d_y.as<T>(), a.d_y.size(1), a.d_y.size(2), a.d_x.size(1), a.accumulate});
  });
}

void run(Stream& stream, const Gelu& a) {
  const int64_t rows = a.x.size(0), columns = a.x.numel() / rows;
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_element("gelu", stream, rows, columns, GeluOf<T>{a.y.as<T>(), a.x.as<T>(), columns});
  });
}

void run(Stream& stream, const GeluBackward& a) {
  const int64_t rows = a.x.size(0), columns = a.x.numel() / rows;
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_element("gelu_backward", stream, rows, columns,
                 GeluGradient<T>{a.d_x.as<T>(), a.d_y.as<T>(), a.x.as<T>(), columns, a.accumulate});
  });
}

void run(Stream& stream, const RouterScore& a) {
  const int64_t tokens = a.score.numel();
  dispatch_float(a.logits.dtype, [&]<class T>(T) {
    each_element("router_score", stream, 1, tokens,
                 Route<T>{a.score.as<float>(), a.own.as<float>(), a.winner.as<int32_t>(), a.logits.as<T>(),
                          a.previous.as<float>(), a.eda_logit.as<float>(), a.logits.numel() / tokens, a.takes_max});
  });
}

void run(Stream& stream, const RouterScoreBackward& a) {
  const int64_t tokens = a.d_score.numel();
  const DType dtype = a.d_logits.defined() ? a.d_logits.dtype : DType::f32;
  dispatch_float(dtype, [&]<class T>(T) {
    each_element("router_score_backward", stream, 1, tokens,
                 RouteBackward<T>{a.d_logits.as<T>(), a.d_previous.as<float>(), a.d_score.as<float>(),
                                  a.own.as<float>(), a.previous.as<float>(), a.eda_logit.as<float>(),
                                  a.winner.as<int32_t>(), a.d_logits.defined() ? a.d_logits.numel() / tokens : 0,
                                  a.accumulate_logits, a.accumulate_previous});
  });
  if (a.d_eda_logit.defined() && a.previous.defined()) {
    HEBB_LAUNCH(eda_gradient_kernel, 1, kSelectThreads, 0, stream, a.d_eda_logit.as<float>(), a.d_score.as<float>(),
                a.own.as<float>(), a.previous.as<float>(), a.eda_logit.as<float>(), tokens);
  }
}

void run(Stream& stream, const SelectTokens& a) {
  const int64_t rows = a.slot.size(0), length = a.slot.size(1);
  const Select select{.slot = a.slot.as<int32_t>(),
                      .lo = a.lo.as<int32_t>(),
                      .hi = a.hi.as<int32_t>(),
                      .selected = a.selected.as<int32_t>(),
                      .score = a.score.as<float>(),
                      .threshold = a.threshold.as<float>(),
                      .forced = a.forced.as<int32_t>(),
                      .held = a.held.as<int32_t>(),
                      .doc_start = a.doc_start.as<int32_t>(),
                      .length = length,
                      .selecting = a.selecting,
                      .range = static_cast<float>(a.range),
                      .tau = static_cast<float>(a.tau)};
  const int64_t lists = a.held.defined() ? rows : 1;
  HEBB_LAUNCH(select_kernel, blocks_for(lists, 1), kSelectThreads, 0, stream, select, rows * length / lists);
  each_element("select_first", stream, rows, length, SelectFirst{select});
}

void run(Stream& stream, const CountSelected& a) {
  each_element("count_selected", stream, 1, 1,
               Count{a.counter.as<int64_t>(), a.selected.as<int32_t>(), a.selected.numel(), a.tokens});
}

void run(Stream& stream, const ThresholdGradient& a) {
  each_element("threshold_gradient", stream, 1, 1,
               Steer{a.gradient.as<float>(), a.counters.as<int64_t>(), a.counters.size(0), a.target, a.gain, a.clip});
}

void run(Stream& stream, const PackTokens& a) {
  const int64_t length = a.x.size(1), channels = a.x.size(2);
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_element("pack_tokens", stream, a.slot.numel(), channels,
                 Pack<T>{a.list.as<T>(), a.x.as<T>(), a.slot.as<int32_t>(), a.factor.as<float>(), length,
                         a.list.size(0) > 1 ? a.list.size(1) : 0, channels});
  });
}

void run(Stream& stream, const PackTokensBackward& a) {
  dispatch_float(a.x.dtype, [&]<class T>(T) {
    each_warp("pack_tokens_backward", stream, a.slot.numel(),
              Unpack<T>{a.d_x.as<T>(), a.d_factor.as<float>(), a.d_list.as<T>(), a.x.as<T>(), a.slot.as<int32_t>(),
                        a.factor.as<float>(), a.x.size(2), a.accumulate_x, a.accumulate_factor});
  });
}

}  // namespace hebb::HEBB_DEVICE
