#pragma once
// Ranks of sub-keys for tokens: 2 q . key - |key|^2, or q . key, as ordered integers, to fp32's precision since
// decisions hang on them. 4 H n D FLOPs a token.
//
// On plain cores (fp32): 32 tokens a block, 4 x 8 sums a thread; bound by shared memory at 0.375 loads a multiply-add:
// two thirds of the peak.
//
// On tensor cores (bf16 queries): bf16 has 8 bits of fp32's 24, so a key is the sum of three such numbers exactly and a
// query is one: three products a pair, exact, summed in fp32; each 32 channels by themselves first, as the tensor
// cores' own sums cut off bits. 64 tokens a block, so that keys come from L2 once for 64 tokens: of 4,096 tokens, 512
// keys and 256 channels 128 blocks read 74 MB from L2 for 6.4 GFLOP of mma.sync. No key is split twice in a block.
#include "kernels/common/cuda/async_copy.cuh"
#include "kernels/common/cuda/mma.cuh"
#include "kernels/product_key/lookup.cuh"

namespace hebb::HEBB_DEVICE {

constexpr int kRankThreads = 256, kRankWarps = kRankThreads / 32;
constexpr int kRankTokens = 32, kRankKeys = 256, kRankChannels = 32;               // a tile of the product
constexpr int kTokensEach = kRankTokens / kRankWarps, kKeysEach = kRankKeys / 32;  // of a thread

struct RankStage {
  float q[kRankTokens][kRankChannels + 1], keys[kRankKeys][kRankChannels + 1];
};

/// ranks [tokens, stride]: 2 q . key - |key|^2, or q . key, as ordered integers, of the block's tokens and codebook.
template <class T>
__device__ __forceinline__ void rank_keys(int32_t* ranks, int64_t stride, RankStage& s, const LookupKeys<T>& in,
                                          const FastChunk& chunk, int64_t first, int64_t tokens, int64_t codebook) {
  const int x = static_cast<int>(threadIdx.x % 32),
            y = static_cast<int>(threadIdx.x / 32);  // keys x + 32 j, tokens y + kRankWarps i
  for (int64_t first_key = 0; first_key < in.n; first_key += kRankKeys) {
    float sums[kTokensEach][kKeysEach] = {};
    for (int64_t first_channel = 0; first_channel < in.half; first_channel += kRankChannels) {
      const int64_t c = first_channel + x;
      HEBB_UNROLL
      for (int line = y; line < kRankTokens; line += kRankWarps) {
        const bool exists = line < tokens && c < in.half;
        s.q[line][x] =
            exists ? to_float(in.q[(token_of(chunk, first + line) * in.heads * 2 + codebook) * in.half + c]) : 0.0f;
      }
      HEBB_UNROLL_BY(16)  // loads on their way
      for (int line = y; line < kRankKeys; line += kRankWarps) {
        const int64_t key = first_key + line;
        s.keys[line][x] = key < in.n && c < in.half ? in.keys[(codebook * in.n + key) * in.half + c] : 0.0f;
      }
      __syncthreads();
      HEBB_UNROLL
      for (int d = 0; d < kRankChannels; ++d) {
        float keys[kKeysEach];
        HEBB_UNROLL
        for (int j = 0; j < kKeysEach; ++j) { keys[j] = s.keys[x + 32 * j][d]; }
        HEBB_UNROLL
        for (int i = 0; i < kTokensEach; ++i) {
          const float query = s.q[y + kRankWarps * i][d];
          HEBB_UNROLL
          for (int j = 0; j < kKeysEach; ++j) { sums[i][j] += query * keys[j]; }
        }
      }
      __syncthreads();
    }
    HEBB_UNROLL
    for (int i = 0; i < kTokensEach * kKeysEach; ++i) {
      const int64_t token = y + kRankWarps * (i / kKeysEach), key = first_key + x + 32 * (i % kKeysEach);
      if (token < tokens && key < in.n) {
        ranks[token * stride + key] = in.rank(sums[i / kKeysEach][i % kKeysEach], codebook * in.n + key);
      }
    }
  }
}

constexpr int kMmaRankThreads = 512, kMmaRankWarps = kMmaRankThreads / 32;
constexpr int kMmaTokens = 64, kMmaKeys = 16 * kMmaRankWarps;  // a tile: 16 keys a warp, all tokens
constexpr int kMmaStride = 40;  // of a line of 32 channels: no two lanes in a bank, packs of 16 bytes

struct alignas(16) MmaRankStage {
  float keys[2][kMmaKeys][kMmaStride];
  uint16_t q[2][kMmaTokens][kMmaStride];
};
static_assert(sizeof(MmaRankStage) == kRankStageBytes && kMmaTokens == kRankedTokens);

/// Starts the copies of a tile of keys and of queries from a channel on.
__device__ __forceinline__ void copy_tile(MmaRankStage& s, int buffer, const LookupKeys<bf16>& in,
                                          const FastChunk& chunk, int64_t first, int64_t tokens, int64_t codebook,
                                          int64_t first_key, int64_t channel) {
  const int thread = static_cast<int>(threadIdx.x), pack = thread % 8 * 4;
  HEBB_UNROLL
  for (int u = 0; u < kMmaKeys * 8 / kMmaRankThreads; ++u) {
    const int line = thread / 8 + u * (kMmaRankThreads / 8);
    const bool exists = first_key + line < in.n && channel + pack < in.half;
    const float* const from =
        exists ? in.keys + (codebook * in.n + first_key + line) * in.half + channel + pack : in.keys;
    copy_async_16(&s.keys[buffer][line][pack], from, exists ? 16 : 0);
  }
  if (thread < kMmaTokens * 4) {
    const int line = thread / 4, own = thread % 4 * 8;
    const bool exists = line < tokens && channel + own < in.half;
    const bf16* const from =
        exists ? in.q + (token_of(chunk, first + line) * in.heads * 2 + codebook) * in.half + channel + own : in.q;
    copy_async_16(&s.q[buffer][line][own], from, exists ? 16 : 0);
  }
  commit_async_copies();
}

/// Two numbers as the sum of three pairs of bf16, the smallest first.
__device__ __forceinline__ void split_in_three(uint32_t (&parts)[3], float first, float second) {
  HEBB_UNROLL
  for (int p = 2; p >= 0; --p) {
    parts[p] = pack_bf16(first, second);
    first -= __uint_as_float(parts[p] << 16);
    second -= __uint_as_float(parts[p] & 0xFFFF0000u);
  }
}

using RankSums = float[kMmaTokens / 16][2][4];  // of mma for tokens 16 m on and keys 8 j on

/// sums += the products of 32 channels, of whole sixteens of tokens up to `tokens`.
__device__ __forceinline__ void multiply_tile(RankSums& sums, const MmaRankStage& s, int buffer, int64_t tokens) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  RankSums own = {};
  HEBB_UNROLL
  for (int d = 0; d < kRankChannels; d += 16) {
    uint32_t keys[2][3][2];  // [j][part]
    HEBB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const from = &s.keys[buffer][warp * 16 + i / 2 * 8 + lane / 4][d + i % 2 * 8 + lane % 4 * 2];
      uint32_t parts[3];
      split_in_three(parts, from[0], from[1]);
      HEBB_UNROLL
      for (int p = 0; p < 3; ++p) { keys[i / 2][p][i % 2] = parts[p]; }
    }
    HEBB_UNROLL
    for (int m = 0; m < kMmaTokens / 16; ++m) {
      if (16 * m < tokens) {
        uint32_t queries[4];
        load_matrices<4, false>(queries, &s.q[buffer][16 * m + lane % 16][d + lane / 16 * 8]);
        HEBB_UNROLL
        for (int i = 0; i < 6; ++i) { mma_bf16(own[m][i % 2], queries, keys[i % 2][i / 2]); }
      }
    }
  }
  HEBB_UNROLL
  for (int i = 0; i < kMmaTokens / 16 * 8; ++i) { sums[i / 8][i / 4 % 2][i % 4] += own[i / 8][i / 4 % 2][i % 4]; }
}

/// The same as rank_keys by kMmaRankThreads threads; half is a multiple of 8, q and keys are 16-byte aligned.
__device__ __forceinline__ void rank_keys_mma(int32_t* ranks, int64_t stride, MmaRankStage& s,
                                              const LookupKeys<bf16>& in, const FastChunk& chunk, int64_t first,
                                              int64_t tokens, int64_t codebook) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  int buffer = 0;
  copy_tile(s, buffer, in, chunk, first, tokens, codebook, 0, 0);
  for (int64_t first_key = 0; first_key < in.n; first_key += kMmaKeys) {
    RankSums sums = {};
    for (int64_t channel = 0; channel < in.half; channel += kRankChannels, buffer ^= 1) {
      const bool is_last = channel + kRankChannels >= in.half;
      const int64_t next_key = is_last ? first_key + kMmaKeys : first_key, next = is_last ? 0 : channel + kRankChannels;
      if (next_key < in.n) {
        copy_tile(s, buffer ^ 1, in, chunk, first, tokens, codebook, next_key, next);
        wait_async_copies<1>();
      } else {
        wait_async_copies<0>();
      }
      __syncthreads();
      multiply_tile(sums, s, buffer, tokens);
      __syncthreads();
    }
    HEBB_UNROLL
    for (int i = 0; i < kMmaTokens / 16 * 8; ++i) {
      const int64_t token = i / 8 * 16 + i % 4 / 2 * 8 + lane / 4,
                    key = first_key + warp * 16 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
      if (token < tokens && key < in.n) {
        ranks[token * stride + key] = in.rank(sums[i / 8][i / 4 % 2][i % 4], codebook * in.n + key);
      }
    }
  }
}

}  // namespace hebb::HEBB_DEVICE
