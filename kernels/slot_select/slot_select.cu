#include "kernels/slot_select/slot_select.h"

#include "kernels/product_key/select.cuh"

// Selection: one block a head of a token, about 7,000 instructions of a warp for n = 240, k = 64 (select.cuh); bound by
// those. So is the gradient by its 2 n k comparisons. The rest by HBM.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr float kLengthEps = 1e-12f;

__global__ void __launch_bounds__(kSelectThreads)
    slot_select_kernel(int32_t* slots, const float* scores, SelectionSize size) {
  HEBB_DYN_SHARED(raw);
  const KeySelection s(raw, size);
  const int64_t head = blockIdx.x;
  for (int item = static_cast<int>(threadIdx.x); item < 2 * size.n; item += kSelectThreads) {
    const int codebook = item < size.n ? 0 : 1;
    s.put(codebook, item - codebook * size.n, scores[head * 2 * size.n + item]);
  }
  select_keys(s);
  for (int i = static_cast<int>(threadIdx.x); i < size.k; i += kSelectThreads) {
    int rank = 0;  // ascending
    for (int j = 0; j < size.k; ++j) { rank += s.chosen[j].slot < s.chosen[i].slot ? 1 : 0; }
    slots[head * size.k + rank] = s.chosen[i].slot;
  }
}

/// One head of one token.
struct Heads {
  const int32_t* slots;
  const float* scores;
  int64_t n, k;

  __device__ float score(int64_t head, int64_t j) const {
    const float* const s = scores + head * 2 * n;
    const auto slot = slots[head * k + j], i = slot / static_cast<int32_t>(n);
    return s[i] + s[n + slot - i * n];
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
    for (int64_t j = lane; j < heads.k; j += 32) { total += expf((heads.score(head, j) - top) * scale); }
    total = warp_sum(total);
    const float length = sqrtf(warp_sum(squares)) + kLengthEps;
    for (int64_t j = lane; j < heads.k; j += 32) {
      const float s = heads.score(head, j);
      w[j] = activation == SlotActivation::softmax ? expf((s - top) * scale) / total
             : activation == SlotActivation::l2    ? s / length
                                                   : s;
    }
  }
};

struct WeighBackward {
  float* d_scores;
  const float *d_weights, *weights;
  Heads heads;
  SlotActivation activation;
  float scale;
  bool accumulate;
};

/// Shared memory: of the chosen, in packs of four, both sub-keys and the gradient of the score.
__host__ __device__ inline int chosen_room(int64_t k) { return static_cast<int>((k + 3) / 4 * 4); }

// One block a head of a token. A thread holds one score and looks for the slots that contain it: the sum has the order
// of the slots.
__global__ void __launch_bounds__(kSelectThreads) slot_weights_backward_kernel(WeighBackward a) {
  HEBB_DYN_SHARED(raw);
  const int k = static_cast<int>(a.heads.k), n = static_cast<int>(a.heads.n), room = chosen_room(k);
  auto* const parts = reinterpret_cast<int32_t*>(raw);  // [2, room]
  auto* const gradients = reinterpret_cast<float*>(parts + 2 * room);
  const int64_t head = blockIdx.x;
  const float *const w = a.weights + head * k, *const dw = a.d_weights + head * k,
                     *const scores = a.heads.scores + head * 2 * n;
  float sums[2] = {};  // w . dw, s . s
  for (int j = static_cast<int>(threadIdx.x); j < room; j += kSelectThreads) {
    const bool exists = j < k;
    const int slot = exists ? a.heads.slots[head * k + j] : 0, i = slot / n;
    parts[j] = exists ? i : -1;
    parts[room + j] = exists ? slot - i * n : -1;
    if (exists) {
      const float s = scores[i] + scores[n + slot - i * n];
      sums[0] += w[j] * dw[j];
      sums[1] += s * s;
    }
  }
  BlockReducer<float> reducer;
  reducer.sum(sums);
  const float along = sums[0], norm = sqrtf(sums[1]), inverse = 1.0f / (norm + kLengthEps),
              shift = norm > 0.0f ? -along / norm : 0.0f;
  for (int j = static_cast<int>(threadIdx.x); j < room; j += kSelectThreads) {
    // l2: w = s / r, r = |s| + eps: ds = dw / r - w (w . dw) / |s|; |s| is taken as constant at 0.
    gradients[j] = j >= k                                    ? 0.0f
                   : a.activation == SlotActivation::softmax ? w[j] * a.scale * (dw[j] - along)
                   : a.activation == SlotActivation::l2      ? inverse * dw[j] + shift * w[j]
                                                             : dw[j];
  }
  __syncthreads();
  for (int item = static_cast<int>(threadIdx.x); item < 2 * n; item += kSelectThreads) {
    const int codebook = item < n ? 0 : 1, own = item - codebook * n;
    float sum = 0;
    for (int j = 0; j < room; j += 4) {
      const Word4 part = load_16_bytes(parts + codebook * room + j), gradient = load_16_bytes(gradients + j);
      HEBB_UNROLL
      for (int e = 0; e < 4; ++e) {
        sum += static_cast<int>(part.word[e]) == own ? __uint_as_float(gradient.word[e]) : 0.0f;
      }
    }
    write(a.d_scores[head * 2 * n + item], sum, a.accumulate);
  }
}

template <class Args> Heads heads_of(const Args& a) {
  return {a.slots.template as<int32_t>(), a.scores.template as<float>(), a.scores.size(3), a.slots.size(2)};
}

}  // namespace

void run(Stream& stream, const SlotSelect& a) {
  const int64_t n = a.scores.size(3), k = a.slots.size(2);
  if (a.slots.numel() > 0) {
    const SelectionSize size(n, k);
    HEBB_LAUNCH(slot_select_kernel, blocks_for(a.slots.numel() / k, 1), kSelectThreads, size.bytes(), stream,
                a.slots.as<int32_t>(), a.scores.as<float>(), size);
  }
}

void run(Stream& stream, const SlotWeights& a) {
  each_warp("slot_weights", stream, a.slots.numel() / a.slots.size(2),
            Weigh{a.weights.as<float>(), heads_of(a), a.activation, static_cast<float>(a.scale)});
}

void run(Stream& stream, const SlotWeightsBackward& a) {
  const int64_t k = a.slots.size(2), word = static_cast<int64_t>(sizeof(float));
  if (a.slots.numel() > 0) {
    HEBB_LAUNCH(slot_weights_backward_kernel, blocks_for(a.slots.numel() / k, 1), kSelectThreads,
                3 * chosen_room(k) * word, stream,
                WeighBackward{a.d_scores.as<float>(), a.d_weights.as<float>(), a.weights.as<float>(), heads_of(a),
                              a.activation, static_cast<float>(a.scale), a.accumulate});
  }
}

}  // namespace hebb::HEBB_DEVICE
