#include "kernels/slot_select.h"

#include "kernels/cuda/common/key_select.h"

// Selection: one block a head of a token, 2 n^2 + (k log k)^2 comparisons in shared memory; bound by those. The rest by HBM.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kLengthEps = 1e-12f;

__global__ void __launch_bounds__(kSelectThreads) slot_select_kernel(int32_t* slots, const float* scores, int64_t n, int64_t k) {
  HEBB_DYN_SHARED(raw);
  const KeySelection s(raw, n, k);
  for (int64_t i = threadIdx.x; i < 2 * n; i += kSelectThreads) {
    s.scores[i] = scores[blockIdx.x * 2 * n + i];
  }
  select_keys(s);
  for (int64_t i = threadIdx.x; i < k; i += kSelectThreads) {
    int64_t rank = 0;  // ascending
    for (int64_t j = 0; j < k; ++j) {
      rank += s.chosen[j].slot < s.chosen[i].slot ? 1 : 0;
    }
    slots[blockIdx.x * k + rank] = s.chosen[i].slot;
  }
}

/// One head of one token.
struct Heads {
  const int32_t* slots;
  const float* scores;
  int64_t n, k;

  __device__ float score(int64_t head, int64_t j) const {
    const float* const s = scores + head * 2 * n;
    const int32_t slot = slots[head * k + j];
    return s[slot / n] + s[n + slot % n];
  }
};

struct Weigh {
  float* weights;
  Heads heads;
  SlotActivation activation;
  float scale;

  __device__ void operator()(int64_t head, int lane) const {
    float* const w = weights + head * heads.k;
    float top = -INFINITY, squares = 0, total = 0;
    for (int64_t j = lane; j < heads.k; j += 32) {
      const float s = heads.score(head, j);
      top = fmaxf(top, s);
      squares += s * s;
    }
    top = warp_max(top);
    for (int64_t j = lane; j < heads.k; j += 32) {
      total += expf((heads.score(head, j) - top) * scale);
    }
    total = warp_sum(total);
    const float length = sqrtf(warp_sum(squares)) + kLengthEps;
    for (int64_t j = lane; j < heads.k; j += 32) {
      const float s = heads.score(head, j);
      w[j] = activation == SlotActivation::softmax ? expf((s - top) * scale) / total : activation == SlotActivation::l2 ? s / length : s;
    }
  }
};

// A thread holds one score and looks for the slots that contain it: the sum has the order of the slots.
struct WeighBackward {
  float* d_scores;
  const float *d_weights, *weights;
  Heads heads;
  SlotActivation activation;
  float scale;
  bool accumulate;

  __device__ void operator()(int64_t head, int64_t item) const {
    const float *const w = weights + head * heads.k, *const dw = d_weights + head * heads.k;
    float along = 0, squares = 0;
    for (int64_t j = 0; j < heads.k; ++j) {
      along += w[j] * dw[j];
      if (activation == SlotActivation::l2) {
        squares += heads.score(head, j) * heads.score(head, j);
      }
    }
    const float norm = sqrtf(squares), inverse = 1.0f / (norm + kLengthEps), shift = norm > 0.0f ? -along / norm : 0.0f;
    float sum = 0;
    for (int64_t j = 0; j < heads.k; ++j) {
      const int32_t slot = heads.slots[head * heads.k + j];
      if ((item < heads.n ? slot / heads.n : heads.n + slot % heads.n) != item) {
        continue;
      }
      // l2: w = s / r, r = |s| + eps: ds = dw / r - w (w . dw) / |s|; |s| is taken as constant at 0.
      sum += activation == SlotActivation::softmax ? w[j] * scale * (dw[j] - along)
             : activation == SlotActivation::l2    ? inverse * dw[j] + shift * w[j]
                                                   : dw[j];
    }
    write(d_scores[head * 2 * heads.n + item], sum, accumulate);
  }
};

template <class Args>
Heads heads_of(const Args& a) {
  return {a.slots.template as<int32_t>(), a.scores.template as<float>(), a.scores.size(3), a.slots.size(2)};
}

}  // namespace

void run(Stream& stream, const SlotSelect& a) {
  const int64_t n = a.scores.size(3), k = a.slots.size(2);
  if (a.slots.numel() > 0) {
    HEBB_LAUNCH(slot_select_kernel, blocks_for(a.slots.numel() / k, 1), kSelectThreads, KeySelection::bytes(n, k), stream,
                a.slots.as<int32_t>(), a.scores.as<float>(), n, k);
  }
}

void run(Stream& stream, const SlotWeights& a) {
  each_warp("slot_weights", stream, a.slots.numel() / a.slots.size(2),
            Weigh{a.weights.as<float>(), heads_of(a), a.activation, static_cast<float>(a.scale)});
}

void run(Stream& stream, const SlotWeightsBackward& a) {
  each_element("slot_weights_backward", stream, a.slots.numel() / a.slots.size(2), 2 * a.scores.size(3),
               WeighBackward{a.d_scores.as<float>(), a.d_weights.as<float>(), a.weights.as<float>(), heads_of(a), a.activation,
                             static_cast<float>(a.scale), a.accumulate});
}

}  // namespace hebb::HEBB_DEVICE
