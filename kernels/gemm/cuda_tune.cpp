// Measured choices of cuBLASLt's algorithms (docs/design/gpu-kernels.md, Matrix products).
#include "kernels/gemm/cuda_tune.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "core/cuda_check.h"
#include "core/random.h"
#include "kernels/gemm/cuda_plan.h"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int kCandidates = 8;
constexpr double kMilliseconds = 5, kRoundMilliseconds = 1;  // of each algorithm; of launches that are timed together
constexpr double kMostLaunches = 200;                        // of these
constexpr int kLaunches = 10, kRounds = 50;                  // at least; at most
constexpr double kGain = 0.98;                               // a smaller one is noise
constexpr int64_t kComparedBytes = int64_t{4} << 20, kPieces = 16;
// A difference in the order of a sum shows in some hundreds of a million bf16 values.
constexpr int64_t kComparedValues = int64_t{1} << 20, kMostCopies = 64;
constexpr int64_t kShift = 256;  // from the operands of one copy to those of the next [bytes]
// Random numbers that repeat, with a period that is no multiple of a usual row.
constexpr int64_t kRandomBytes = kShift * 3906;

int64_t round_up(int64_t bytes) { return (bytes + kShift - 1) / kShift * kShift; }

/// Memory of the device; null where it has no room.
struct Segment {
  explicit Segment(int64_t bytes) : data(static_cast<char*>(allocate_segment(bytes))) {}
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() { free_segment(data); }
  char* data;
};

/// Where the tensors of a product lie in a segment. C lies there several times, for products of other parts of A and B:
/// one small product in bf16 might hide the order of its sums.
struct Places {
  int64_t a, b, c, each_c, copies, bytes;  // each_c: of one C

  explicit Places(const ProductKey& key) {
    const auto extent = [](int64_t rows, int64_t columns, int64_t stride, DType dtype) {
      return round_up(((rows - 1) * stride + columns) * dtype_bytes(dtype));
    };
    // What is less aligned than memory of the device begins that far behind it.
    const auto begin = [](int64_t at, int64_t alignment) { return at + (alignment < 16 ? alignment : 0); };
    copies = std::clamp<int64_t>(kComparedValues / (key.m * key.n), 1, kMostCopies);
    each_c = extent(key.m, key.n, key.ldc, key.out);
    const int64_t slack = kShift * (2 * copies + 2);
    const int64_t bytes_a = extent(key.trans_a ? key.k : key.m, key.trans_a ? key.m : key.k, key.lda, key.in) + slack;
    const int64_t bytes_b = extent(key.trans_b ? key.n : key.k, key.trans_b ? key.k : key.n, key.ldb, key.in) + slack;
    a = begin(0, key.align_a);
    b = begin(bytes_a, key.align_b);
    c = begin(bytes_a + bytes_b, key.align_c);
    bytes = bytes_a + bytes_b + copies * each_c + kShift;
  }
};

/// Between -1 and 1, as bf16 and as fp32.
std::vector<uint16_t> random_numbers() {
  std::vector<uint16_t> values(kRandomBytes / 2);
  Rng rng(0, "autotune");
  for (uint16_t& value : values) {
    const auto x = static_cast<float>(2 * rng.uniform() - 1);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    value = static_cast<uint16_t>(bits >> 16);
  }
  return values;
}

void fill(Stream& stream, char* to, int64_t bytes, const std::vector<uint16_t>& values) {
  int64_t filled = std::min(bytes, kRandomBytes);
  upload_bytes(stream, to, values.data(), filled);
  while (filled < bytes) {
    const int64_t count = std::min(filled, bytes - filled);
    move_bytes(stream, to + filled, to, count);
    filled += count;
  }
}

/// One product of random numbers in a segment.
class Trial {
 public:
  Trial(Stream& stream, const ProductKey& key, bool accumulate, char* segment, const std::vector<uint16_t>& values)
      : stream_(stream), key_(key), accumulate_(accumulate), layouts_(key), places_(key), segment_(segment) {
    fill(stream, segment, places_.c, values);
  }

  TunedProduct choose() {
    const int64_t workspace_bytes = stream_scratch(stream_).bytes;
    const cublasLtHandle_t blas = native(stream_).blas;
    const auto find = [&](int most) { return find_algorithms(blas, layouts_, key_, workspace_bytes, most); };
    const cublasLtMatmulAlgo_t first = find(1).front();
    check(multiply(first, 0, accumulate_), "cublasLtMatmul");
    TunedProduct tuned{.product = key_, .first_us = time_us(first)};
    tuned.us = tuned.first_us;
    cublasLtMatmulAlgo_t best = first;
    std::vector<char> expected;
    for (const cublasLtMatmulAlgo_t& candidate : find(kCandidates)) {
      if (std::memcmp(&candidate, &first, sizeof(first)) == 0) { continue; }
      if (multiply(candidate, 0, accumulate_) != CUBLAS_STATUS_SUCCESS) { continue; }
      const double us = time_us(candidate);
      if (us >= kGain * tuned.us) { continue; }
      if (expected.empty()) { expected = result_of(first); }
      if (result_of(candidate) != expected) { continue; }
      best = candidate;
      tuned.us = us;
    }
    if (tuned.is_faster()) {  // than the first one was on a device that may have been asleep
      tuned.first_us = std::min(tuned.first_us, time_us(first));
      if (tuned.us >= kGain * tuned.first_us) {
        best = first;
        tuned.us = tuned.first_us;
      }
    }
    std::memcpy(tuned.algorithm.data(), &best, sizeof(best));
    return tuned;
  }

 private:
  /// C number `copy` (+)= 0.7 A B: a factor that shows whether its product is rounded.
  cublasStatus_t multiply(const cublasLtMatmulAlgo_t& algorithm, int64_t copy, bool accumulate) {
    const StreamScratch scratch = stream_scratch(stream_);
    const NativeStream& state = native(stream_);
    const float alpha = 0.7f, beta = accumulate ? 1.0f : 0.0f;
    const int64_t shift = (accumulate ? copy + 1 : copy) * kShift;
    const char *a = segment_ + places_.a + shift, *b = segment_ + places_.b + 2 * shift;
    char* const c = segment_ + places_.c + copy * places_.each_c;
    return cublas_lt().Matmul(state.blas, layouts_.operation, &alpha, b, layouts_.left, a, layouts_.right, &beta, c,
                              layouts_.out, c, layouts_.out, &algorithm, scratch.data,
                              static_cast<size_t>(scratch.bytes), state.stream);
  }

  double time_ms(const std::function<void()>& work) {
    begin_.record(stream_);
    work();
    end_.record(stream_);
    end_.synchronize();
    return static_cast<double>(Event::elapsed_ms(begin_, end_));
  }

  /// Of one launch: the mean of the best round.
  double time_us(const cublasLtMatmulAlgo_t& algorithm) {
    const auto launch = [&] { multiply(algorithm, 0, accumulate_); };
    launch();  // loads its code
    const double estimate = time_ms(launch);
    const auto each =
        static_cast<int64_t>(std::clamp(kRoundMilliseconds / std::max(estimate, 1e-6), 1.0, kMostLaunches));
    // The host could not enqueue small products as fast as a device computes them.
    Graph graph(stream_, 0, [&] {
      for (int64_t i = 0; i < each; ++i) { launch(); }
    });
    graph.launch(stream_);  // the first launch takes it to the device
    double best = std::numeric_limits<double>::infinity(), all = 0;
    int64_t launches = 0;
    for (int round = 0; round < kRounds && (all < kMilliseconds || launches < kLaunches); ++round) {
      const double ms = time_ms([&] { graph.launch(stream_); });
      best = std::min(best, ms / static_cast<double>(each));
      all += ms;
      launches += each;
    }
    return best * 1e3;
  }

  /// Pieces of every C, first without and then with what lies there.
  std::vector<char> result_of(const cublasLtMatmulAlgo_t& algorithm) {
    char* const c = segment_ + places_.c;
    const int64_t bytes = places_.copies * places_.each_c;
    zero_bytes(stream_, c, bytes);
    std::vector<char> result;
    for (const bool accumulate : {false, true}) {
      for (int64_t copy = 0; copy < places_.copies; ++copy) { multiply(algorithm, copy, accumulate); }
      append_pieces(c, bytes, result);
    }
    return result;
  }

  /// All of it, or pieces from the beginning to the end.
  void append_pieces(char* from, int64_t bytes, std::vector<char>& to) {
    const int64_t count = bytes <= kComparedBytes ? 1 : kPieces, each = std::min(bytes, kComparedBytes) / count;
    const size_t known = to.size();
    to.resize(known + static_cast<size_t>(count * each));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = count == 1 ? 0 : (bytes - each) / (count - 1) * i;
      download(stream_, {{to.data() + known + i * each, Tensor{from + at, DType::u8, {each}}}});
    }
  }

  Stream& stream_;
  const ProductKey key_;
  const bool accumulate_;
  const ProductLayouts layouts_;
  const Places places_;
  char* const segment_;
  Event begin_, end_;
};

}  // namespace

MeasuredProducts measure_products(Stream& stream, const std::map<ProductKey, bool>& products,
                                  const std::function<void(int64_t done)>& done) {
  std::vector<int64_t> sizes;
  for (const auto& [key, accumulate] : products) { sizes.push_back(Places(key).bytes); }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  std::unique_ptr<Segment> segment;  // the largest that there is room for; it serves all products
  int64_t room = 0;
  for (const int64_t bytes : sizes) {
    segment = std::make_unique<Segment>(bytes);
    if (segment->data != nullptr) {
      room = bytes;
      break;
    }
  }
  const std::vector<uint16_t> values = random_numbers();
  MeasuredProducts measured;
  int64_t seen = 0;
  for (const auto& [key, accumulate] : products) {
    if (Places(key).bytes <= room) {
      measured.products.push_back(Trial(stream, key, accumulate, segment->data, values).choose());
    } else {
      ++measured.without_memory;
    }
    done(++seen);
  }
  synchronize(stream);
  return measured;
}

}  // namespace hebb::HEBB_DEVICE
