// The emulator behind core/cuda_device.h and the interface of kernels/gemm/gemm.h.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "block.h"
#include "core/bfloat.h"
#include "core/cuda_code.h"
#include "core/cuda_side.h"
#include "core/upload_ring.h"
#include "device_model.h"
#include "host.h"
#include "kernels/gemm/cuda_layout.h"
#include "kernels/gemm/cuda_tune.h"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{256}
                                    << 10;  // small, so that work that does not fit into it at once is tested too

thread_local DeviceCounts counts;

struct NativeStream {
  simt::Stream* stream;
  void* workspace = nullptr;
  UploadRing ring{int64_t{64} << 10};
  GraphUploads* recording = nullptr;
};

NativeStream* make_native_stream(bool is_side = false) {
  auto state = std::make_unique<NativeStream>();
  state->stream = simt::create_stream();
  if (is_side) { return state.release(); }
  state->workspace = simt::allocate(kWorkspaceBytes);
  ++counts.allocations;
  return state.release();
}

NativeStream& native(Stream& stream) {
  HEBB_ASSERT(stream.device == DeviceKind::cuda);
  if (stream.native == nullptr) {
    thread_local NativeStream* const default_stream = make_native_stream();
    stream.native = default_stream;
  }
  return *static_cast<NativeStream*>(stream.native);
}

}  // namespace

int device_count() { return 1; }
std::string device_problem() { return ""; }
std::string products_problem() { return ""; }
std::string code_problem() { return ""; }
std::string code_note() { return ""; }
std::string products_library() { return "the emulator's own"; }

DeviceInfo device_info() {
  return {.name = "SIMT emulator",
          .total_bytes = int64_t{1} << 32,
          .free_bytes = (int64_t{1} << 32) - simt::allocated_bytes(),
          .multiprocessors = multiprocessors(),
          .capability = 0};
}

int multiprocessors() { return simt::settings().multiprocessors; }
int64_t shared_bytes() { return simt::device_model().shared_bytes; }

void use_device(int index) { HEBB_ASSERT(index == 0); }

Stream create_stream() {
  Stream stream{.device = DeviceKind::cuda};
  stream.native = make_native_stream();
  return stream;
}

Stream create_side_stream() {
  Stream stream{.device = DeviceKind::cuda};
  stream.native = make_native_stream(true);
  return stream;
}

void destroy_stream(Stream& stream) {
  const std::unique_ptr<NativeStream> state(&native(stream));
  stream.native = nullptr;
  simt::destroy_stream(state->stream);
  simt::release(state->workspace);
}

void synchronize(Stream& stream) {
  ++counts.waits;
  simt::synchronize(native(stream).stream);
}
DeviceCounts device_counts() { return counts; }
void* native_stream(Stream& stream) { return native(stream).stream; }
StreamScratch stream_scratch(Stream& stream) {
  HEBB_ASSERT(native(stream).workspace != nullptr);
  return {native(stream).workspace, kWorkspaceBytes};
}

Event::Event() : native_(new simt::Event) {}
Event::~Event() { delete static_cast<simt::Event*>(native_); }

namespace {

/// In what a Graph has recorded: stands for an event, which each launch records or waits for.
struct EventNode {
  simt::Event* event;
  bool waits;
  void operator()() const {}
};

}  // namespace

void Event::record(Stream& stream) {
  NativeStream& state = native(stream);
  if (state.recording != nullptr) {
    simt::enqueue(state.stream, EventNode{static_cast<simt::Event*>(native_), false});
  } else {
    simt::record(*static_cast<simt::Event*>(native_), state.stream);
  }
}
void Event::make_wait(Stream& stream) {
  NativeStream& state = native(stream);
  if (state.recording != nullptr) {
    simt::enqueue(state.stream, EventNode{static_cast<simt::Event*>(native_), true});
  } else {
    simt::wait(state.stream, *static_cast<simt::Event*>(native_));
  }
}
void Event::synchronize() {
  ++counts.waits;
  simt::synchronize(*static_cast<simt::Event*>(native_));
}
bool Event::has_happened() const { return simt::has_happened(*static_cast<simt::Event*>(native_)); }
float Event::elapsed_ms(const Event& begin, const Event& end) {
  return static_cast<float>(
      simt::elapsed_ms(*static_cast<simt::Event*>(begin.native_), *static_cast<simt::Event*>(end.native_)));
}

struct Graph::State {
  explicit State(int64_t upload_bytes) : uploads(upload_bytes) {}
  GraphUploads uploads;
  std::vector<std::function<void()>> work;
};

Graph::Graph(Stream& stream, int64_t upload_bytes, const std::function<void()>& work)
    : state_(std::make_unique<State>(upload_bytes)) {
  NativeStream& state = native(stream);
  simt::begin_capture(state.stream);
  const std::exception_ptr failure = state_->uploads.collect(state.recording, work);
  state_->work = simt::end_capture(state.stream);
  if (failure != nullptr) { std::rethrow_exception(failure); }
}

Graph::~Graph() { simt::synchronize_all(); }  // what was launched reads its memory

void Graph::launch(Stream& stream) {
  ++counts.graphs;
  for (const std::function<void()>& operation : state_->work) {
    if (const auto* node = operation.target<EventNode>()) {
      node->waits ? simt::wait(native(stream).stream, *node->event) : simt::record(*node->event, native(stream).stream);
    } else {
      simt::enqueue(native(stream).stream, operation);
    }
  }
}

bool is_recording(Stream& stream) { return native(stream).recording != nullptr; }

void* allocate_segment(int64_t bytes) {
  ++counts.allocations;
  return simt::allocate(bytes);
}
void free_segment(void* address) { simt::release(address); }
void fill_bytes(void* address, int value, int64_t bytes) {
  simt::synchronize_all();
  simt::fill_async(address, value, bytes, nullptr);
  simt::synchronize(static_cast<simt::Stream*>(nullptr));
}
void* allocate_pinned(int64_t bytes) { return std::malloc(static_cast<size_t>(bytes)); }
void free_pinned(void* memory) { std::free(memory); }
void upload_bytes(Stream& stream, void* to, const void* from, int64_t bytes) {
  NativeStream& state = native(stream);
  counts.uploaded_bytes += (bytes + kUploadAlign - 1) / kUploadAlign * kUploadAlign;
  void* const place = state.recording != nullptr ? state.recording->place(bytes) : state.ring.place(stream, bytes);
  if (place != nullptr) { std::memcpy(place, from, static_cast<size_t>(bytes)); }
  simt::copy_async(to, place != nullptr ? place : from, bytes, state.stream);
  if (place == nullptr) { synchronize(stream); }
}
void download(Stream& stream, const std::vector<HostCopy>& copies) {
  for (const HostCopy& c : copies) { simt::copy_async(c.host, c.device.data, c.device.bytes(), native(stream).stream); }
  synchronize(stream);
}
void move_bytes(Stream& stream, void* to, const void* from, int64_t bytes) {
  simt::copy_async(to, from, bytes, native(stream).stream);
}
void zero_bytes(Stream& stream, void* to, int64_t bytes) { simt::fill_async(to, 0, bytes, native(stream).stream); }

namespace {

template <class T> float load(const Tensor& tensor, int64_t at) {
  if constexpr (std::is_same_v<T, bf16>) {
    return widened(tensor.as<bf16>()[at]);
  } else {
    return tensor.as<T>()[at];
  }
}

void store(float& to, float value) { to = value; }
void store(bf16& to, float value) { to = nearest_bf16(value); }

/// The nearest number with 10 bits of mantissa, as tensor cores read fp32.
float as_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0xFFFu + (bits >> 13 & 1u)) & ~0x1FFFu;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

/// Stands in for cuBLASLt, from the same column-major description, with fp32 accumulation.
template <class In, class Out> void multiply(const Gemm& g, bool in_tf32) {
  const ColumnMajorProduct p = column_major(g);
  const auto at = [](const ColumnMajor& m, int64_t i, int64_t j) {
    const int64_t row = m.is_transposed ? j : i, column = m.is_transposed ? i : j;
    HEBB_ASSERT(row < m.rows && column < m.columns);
    return load<In>(m.tensor, column * m.stride + row);
  };
  for (int64_t j = 0; j < p.out.columns; ++j) {
    for (int64_t i = 0; i < p.out.rows; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < g.k; ++l) {
        const float x = at(p.left, i, l), y = at(p.right, l, j);
        sum += in_tf32 ? as_tf32(x) * as_tf32(y) : x * y;
      }
      const int64_t to = j * p.out.stride + i;
      store(g.c.as<Out>()[to], static_cast<float>(g.alpha) * sum + (g.accumulate ? load<Out>(g.c, to) : 0.0f));
    }
  }
}

}  // namespace

void run(Stream& stream, const Gemm& g) {
  HEBB_ASSERT(g.a.dtype == g.b.dtype && (g.a.dtype == g.c.dtype || g.c.dtype == DType::f32));
  simt::enqueue(native(stream).stream, [g, in_tf32 = stream.allows_tf32 || g.tf32] {
    if (g.a.dtype == DType::f32) {
      multiply<float, float>(g, in_tf32);
    } else if (g.c.dtype == DType::f32) {
      multiply<bf16, float>(g, false);
    } else {
      multiply<bf16, bf16>(g, false);
    }
  });
}

int64_t products_version() { return 0; }

/// There is one algorithm.
MeasuredProducts measure_products(Stream&, const std::map<ProductKey, bool>& products,
                                  const std::function<void(int64_t done)>& done) {
  MeasuredProducts measured;
  for (const auto& [key, accumulate] : products) {
    measured.products.push_back({.product = key});
    done(static_cast<int64_t>(measured.products.size()));
  }
  return measured;
}

std::string take_algorithms(Stream&, std::span<const TunedProduct>) { return ""; }

}  // namespace hebb::HEBB_DEVICE
