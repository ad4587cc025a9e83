#include "kernels/norm/norm.h"

#include "kernels/common/cuda/column_sums.cuh"
#include "kernels/norm/scratch.h"

// A team of threads per row (forward) or per sequence of rows (backward): a block or, for rows of up to 32 packs such
// as heads, a group of lanes, so that narrow rows fill warps. A thread owns kPacks 16-byte packs of columns: pack p of
// thread t of the team is number p * threads + t of the row. Rows are read once and stay in registers.
namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxWidth = 8192;  // more would not fit into the registers of the backward kernel

/// kPacks of a team that is a group of lanes.
constexpr int kInGroup = 0;

/// The threads of a row. kInGroup: `lanes` of a warp, one pack each; else the block.
template <int kPacks> class Team {
 public:
  static constexpr bool kIsGroup = kPacks == kInGroup;
  static constexpr int kParts = kIsGroup ? 1 : kPacks;  // packs of a thread

  __device__ explicit Team(int lanes) : lanes_(lanes) {}
  __device__ int64_t threads() const { return kIsGroup ? lanes_ : static_cast<int>(blockDim.x); }
  __device__ int64_t thread() const {
    return kIsGroup ? static_cast<int>(threadIdx.x) % lanes_ : static_cast<int>(threadIdx.x);
  }
  /// Teams of a block, and this team's number among them.
  __device__ int64_t teams() const { return kIsGroup ? static_cast<int>(blockDim.x) / lanes_ : 1; }
  __device__ int64_t number() const { return kIsGroup ? static_cast<int>(threadIdx.x) / lanes_ : 0; }
  __device__ float sum(float value) {
    if constexpr (kIsGroup) {
      return group_sum(value, lanes_);
    } else {
      return reduce_.sum(value);
    }
  }
  __device__ void sum(float (&values)[2]) {
    if constexpr (kIsGroup) {
      values[0] = group_sum(values[0], lanes_);
      values[1] = group_sum(values[1], lanes_);
    } else {
      reduce_.sum(values);
    }
  }

 private:
  int lanes_;
  BlockReducer<float> reduce_;
};

template <class T> struct ForwardArguments {
  T *y, *h_out;
  float *mean, *rstd;
  const T *h, *branch;
  const float *weight, *bias;
  int64_t rows, width;
  int lanes;
  float rho, eps, offset;
  bool is_layer;
};

// Grid: rows, or blocks of groups. Static shared: 1 KB. HBM: reads h and branch, writes h_out and y; about 8 FLOP an
// element.
template <class T, int kPacksOrGroup, bool kVector>
__global__ void __launch_bounds__(kMaxThreads) norm_forward_kernel(ForwardArguments<T> a) {
  constexpr int N = kPack<T>, kPacks = Team<kPacksOrGroup>::kParts;
  Team<kPacksOrGroup> team(a.lanes);
  const int64_t row = blockIdx.x * team.teams() + team.number(), begin = row * a.width;
  if (row >= a.rows) {
    return;  // a whole group; blocks have a row each
  }
  float x[kPacks][N];
  HEBB_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int64_t at = (p * team.threads() + team.thread()) * N;
    load_pack(x[p], a.h + begin, at, a.width, kVector);
    if (a.branch != nullptr) {
      float branch[N];
      load_pack(branch, a.branch + begin, at, a.width, kVector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        // Rounded as it is stored: the backward pass reads what was normed from h_out.
        x[p][j] = to_float(from_float<T>(x[p][j] + a.rho * branch[j]));
      }
      store_pack(a.h_out + begin, at, a.width, kVector, x[p]);
    }
  }

  float mean = 0;
  if (a.is_layer) {
    float sum = 0;
    HEBB_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        sum += x[p][j];  // 0 past the end
      }
    }
    mean = team.sum(sum) / static_cast<float>(a.width);
  }
  float squares = 0;
  HEBB_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int64_t at = (p * team.threads() + team.thread()) * N;
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) {
      x[p][j] -= mean;
      squares += at + j < a.width ? x[p][j] * x[p][j] : 0.0f;
    }
  }
  const float rstd = 1.0f / sqrtf(team.sum(squares) / static_cast<float>(a.width) + a.eps);

  HEBB_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int64_t at = (p * team.threads() + team.thread()) * N;
    float weight[N];
    load_pack(weight, a.weight, at, a.width, kVector);
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { x[p][j] *= rstd * (weight[j] + a.offset); }
    if (a.is_layer) {
      float bias[N];
      load_pack(bias, a.bias, at, a.width, kVector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { x[p][j] += bias[j]; }
    }
    store_pack(a.y + begin, at, a.width, kVector, x[p]);
  }
  if (team.thread() == 0) {
    a.rstd[row] = rstd;
    if (a.is_layer) { a.mean[row] = mean; }
  }
}

/// The sums of a block's groups, from a pack a lane to partial [2][width]: first `weights`, then, where there are some,
/// `biases`.
template <int N>
__device__ __forceinline__ void add_groups(float* partial, int64_t width, int lanes, const float (&weights)[N],
                                           const float* biases) {
  HEBB_DYN_SHARED(raw);
  float* const sums = reinterpret_cast<float*>(raw);  // [groups][lanes * N]
  const int64_t room = static_cast<int64_t>(lanes) * N, groups = static_cast<int>(blockDim.x) / lanes;
  for (int part = 0; part < (biases != nullptr ? 2 : 1); ++part) {
    HEBB_UNROLL
    for (int j = 0; j < N; ++j) { sums[threadIdx.x * N + j] = part == 0 ? weights[j] : biases[j]; }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < width; c += blockDim.x) {
      float total = 0;
      for (int64_t g = 0; g < groups; ++g) { total += sums[g * room + c]; }
      partial[part * width + c] = total;
    }
    __syncthreads();
  }
}

template <class T> struct BackwardArguments {
  T *d_h, *d_branch;
  float* partial;
  const T *d_y, *d_h_out, *h;
  const float *mean, *rstd, *weight;
  int64_t rows, rows_per_block, width;
  int lanes;
  float rho, offset;
  bool accumulate;
};

// Grid: NormBackwardScratch::blocks(), each a sequence of rows, which its teams share. With n = (x - mean) rstd and g =
// d_y (weight + offset): d_x = rstd (g - mean(g) [layer] - n mean(g n)). Writes the block's sums of d_y n and d_y over
// its rows to `partial`. HBM: reads d_y, h and d_h_out, writes d_h; about 15 FLOP an element. Shared, for groups: their
// sums.
template <class T, int kPacksOrGroup, bool kLayer, bool kVector>
__global__ void __launch_bounds__(kMaxThreads) norm_backward_kernel(BackwardArguments<T> a) {
  constexpr int N = kPack<T>, kPacks = Team<kPacksOrGroup>::kParts;
  constexpr bool kEarly = kPacks == 1 && !kLayer;  // registers allow d_h_out to be loaded beside the rest
  Team<kPacksOrGroup> team(a.lanes);
  const float inverse_width = 1.0f / static_cast<float>(a.width);
  float d_weight[kPacks][N] = {};
  float d_bias[kLayer ? kPacks : 1][N] = {};
  const int64_t first = blockIdx.x * a.rows_per_block;
  const int64_t last = first + a.rows_per_block < a.rows ? first + a.rows_per_block : a.rows;
  for (int64_t row = first + team.number(); row < last; row += team.teams()) {
    const int64_t begin = row * a.width;
    const float mean = kLayer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
    float n[kPacks][N], g[kPacks][N], others[kPacks][N], sums[2] = {};
    HEBB_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = (p * team.threads() + team.thread()) * N;
      float weight[N];
      load_pack(n[p], a.h + begin, at, a.width, kVector);
      load_pack(g[p], a.d_y + begin, at, a.width, kVector);  // 0 past the end, so that nothing there counts
      load_pack(weight, a.weight, at, a.width, kVector);
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) { others[p][j] = 0; }
      if (kEarly && a.d_h_out != nullptr) { load_pack(others[p], a.d_h_out + begin, at, a.width, kVector); }
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        n[p][j] = (n[p][j] - mean) * rstd;
        d_weight[p][j] += g[p][j] * n[p][j];
        if constexpr (kLayer) { d_bias[p][j] += g[p][j]; }
        g[p][j] *= weight[j] + a.offset;
        sums[0] += g[p][j] * n[p][j];
        sums[1] += kLayer ? g[p][j] : 0.0f;
      }
    }
    if (a.d_h == nullptr && a.d_branch == nullptr) { continue; }
    if constexpr (kLayer) {
      team.sum(sums);
    } else {
      sums[0] = team.sum(sums[0]);
    }
    HEBB_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int64_t at = (p * team.threads() + team.thread()) * N;
      float(&other)[N] = others[p];
      if (!kEarly && a.d_h_out != nullptr) { load_pack(other, a.d_h_out + begin, at, a.width, kVector); }
      HEBB_UNROLL
      for (int j = 0; j < N; ++j) {
        g[p][j] = rstd * (g[p][j] - sums[1] * inverse_width - n[p][j] * sums[0] * inverse_width) + other[j];
      }
      if (a.d_branch != nullptr) {
        HEBB_UNROLL
        for (int j = 0; j < N; ++j) { other[j] = a.rho * g[p][j]; }
        store_pack(a.d_branch + begin, at, a.width, kVector, other);
      }
      if (a.d_h != nullptr) { write_pack(a.d_h + begin, at, a.width, kVector, g[p], a.accumulate); }
    }
  }
  float* const partial = a.partial + blockIdx.x * 2 * a.width;
  if constexpr (Team<kPacksOrGroup>::kIsGroup) {
    add_groups(partial, a.width, a.lanes, d_weight[0], kLayer ? d_bias[0] : nullptr);
    return;
  }
  HEBB_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int64_t at = (p * team.threads() + team.thread()) * N;
    store_pack(partial, at, a.width, kVector, d_weight[p]);
    if constexpr (kLayer) { store_pack(partial + a.width, at, a.width, kVector, d_bias[p]); }
  }
}

/// Calls f(packs per thread as a constant, or kInGroup, threads per block) for rows of `width` elements.
template <int N, class F> void dispatch_width(int64_t width, F&& f) {
  const int64_t packs = (width + N - 1) / N;
  const auto threads = [packs](int64_t per_thread) {
    return static_cast<unsigned>(((packs + per_thread - 1) / per_thread + 31) / 32 * 32);
  };
  constexpr int kMaxPacks = kMaxWidth / kMaxThreads / N;
  if (packs <= 32) {
    f(std::integral_constant<int, kInGroup>{}, 256u);
  } else if (packs <= kMaxThreads) {
    f(std::integral_constant<int, 1>{}, threads(1));
  } else if (packs <= 2 * kMaxThreads) {
    f(std::integral_constant<int, 2>{}, threads(2));
  } else if (packs <= kMaxPacks * kMaxThreads) {
    f(std::integral_constant<int, kMaxPacks>{}, threads(kMaxPacks));
  } else {
    throw ConfigError("model.hidden_size", std::to_string(width), "at most " + std::to_string(kMaxWidth) + " on cuda");
  }
}

template <class T> void forward(Stream& stream, const NormForward& a) {
  const int64_t width = a.weight.numel(), rows = a.h.numel() / width;
  ForwardArguments<T> f{.y = a.y.as<T>(),
                        .h_out = a.h_out.as<T>(),
                        .mean = a.mean.as<float>(),
                        .rstd = a.rstd.as<float>(),
                        .h = a.h.as<T>(),
                        .branch = a.branch.as<T>(),
                        .weight = a.weight.as<float>(),
                        .bias = a.bias.as<float>(),
                        .rows = rows,
                        .width = width,
                        .lanes = lanes_for<kPack<T>>(width),
                        .rho = static_cast<float>(a.rho),
                        .eps = static_cast<float>(a.eps),
                        .offset = a.kind == NormKind::rms_unit_offset ? 1.0f : 0.0f,
                        .is_layer = a.kind == NormKind::layer};
  const bool vector = can_vectorise<kPack<T>>(width, f.y, f.h_out, f.h, f.branch, f.weight, f.bias);
  dispatch_width<kPack<T>>(width, [&](auto packs, unsigned threads) {
    const int64_t rows_of_block = packs() == kInGroup ? threads / static_cast<unsigned>(f.lanes) : 1;
    dispatch_flag(vector, [&](auto whole) {
      HEBB_LAUNCH((norm_forward_kernel<T, packs(), whole()>), blocks_for(rows, rows_of_block), threads, 0, stream, f);
    });
  });
}

template <class T> void backward(Stream& stream, const NormBackward& a, const NormBackwardScratch& scratch) {
  const int64_t width = a.weight.numel(), rows = a.h.numel() / width, blocks = scratch.blocks();
  BackwardArguments<T> f{.d_h = a.d_h.as<T>(),
                         .d_branch = a.d_branch.as<T>(),
                         .partial = scratch.partial.as<float>(),
                         .d_y = a.d_y.as<T>(),
                         .d_h_out = a.d_h_out.as<T>(),
                         .h = a.h.as<T>(),
                         .mean = a.mean.as<float>(),
                         .rstd = a.rstd.as<float>(),
                         .weight = a.weight.as<float>(),
                         .rows = rows,
                         .rows_per_block = (rows + blocks - 1) / blocks,
                         .width = width,
                         .lanes = lanes_for<kPack<T>>(width),
                         .rho = static_cast<float>(a.rho),
                         .offset = a.kind == NormKind::rms_unit_offset ? 1.0f : 0.0f,
                         .accumulate = a.accumulate};
  const bool vector = can_vectorise<kPack<T>>(width, f.d_h, f.d_branch, f.partial, f.d_y, f.d_h_out, f.h, f.weight);
  const bool is_layer = a.kind == NormKind::layer;
  dispatch_width<kPack<T>>(width, [&](auto packs, unsigned threads) {
    const int64_t shared = packs() == kInGroup ? threads * kPack<T> * static_cast<int64_t>(sizeof(float)) : 0;
    dispatch_flag(is_layer, [&](auto layer) {
      dispatch_flag(vector, [&](auto whole) {
        HEBB_LAUNCH((norm_backward_kernel<T, packs(), layer(), whole()>), blocks_for(blocks, 1), threads, shared,
                    stream, f);
      });
    });
  });
  add_column_sums(stream, a.d_weight, f.partial, blocks, 2 * width);
  if (is_layer) { add_column_sums(stream, a.d_bias, f.partial + width, blocks, 2 * width); }
}

}  // namespace

void run(Stream& stream, const NormForward& args) {
  if (args.h.numel() > 0) {
    dispatch_float(args.h.dtype, [&]<class S>(S) { forward<S>(stream, args); });
  }
}

void run(Stream& stream, const NormBackward& args, const NormBackwardScratch& scratch) {
  if (args.h.numel() > 0) {
    dispatch_float(args.h.dtype, [&]<class S>(S) { backward<S>(stream, args, scratch); });
  }
}

}  // namespace hebb::HEBB_DEVICE
