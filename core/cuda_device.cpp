#include "core/cuda_device.h"

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <fmt/core.h>

#include "core/cuda_check.h"
#include "core/cuda_code.h"
#include "core/cuda_side.h"

namespace hebb::HEBB_DEVICE {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

struct Counters {
  std::atomic<int64_t> waits = 0, allocations = 0, uploaded_bytes = 0, graphs = 0;
};
Counters& counters() {
  static Counters all;
  return all;
}

std::unique_ptr<NativeStream> make_native_stream(bool is_side = false) {
  auto state = std::make_unique<NativeStream>();
  check(cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking), "cudaStreamCreate");
  if (is_side) { return state; }
  check(cudaMalloc(&state->workspace, kWorkspaceBytes), "workspace of a stream");
  ++counters().allocations;
  check(cublas_lt().Create(&state->blas), "cublasLtCreate");
  return state;
}

/// The device that a thread uses, which nothing but use_device() changes.
struct ThreadDevice {
  int index = 0;
  std::unordered_map<const void*, int64_t> permitted{};  // shared memory of kernels there, or less than that
};
ThreadDevice& thread_device() {
  thread_local ThreadDevice device;
  return device;
}

/// Of the device that the calling thread uses.
int attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, thread_device().index), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

NativeStream& native(Stream& stream) {
  HEBB_ASSERT(stream.device == DeviceKind::cuda);
  if (stream.native == nullptr) {
    // Never destroyed: at the end of the process the driver may be gone first.
    static NativeStream* const default_stream = make_native_stream().release();
    stream.native = default_stream;
  }
  return *static_cast<NativeStream*>(stream.native);
}

namespace {

/// "8.9", and the option that compiles for it.
struct Capability {
  int major = attribute(cudaDevAttrComputeCapabilityMajor), minor = attribute(cudaDevAttrComputeCapabilityMinor);

  std::string text() const { return fmt::format("{}.{}", major, minor); }
  std::string option() const { return fmt::format("-DCMAKE_CUDA_ARCHITECTURES={}{}-real", major, minor); }
};

}  // namespace

std::string find_device_problem() {
  int count = 0, driver = 0, runtime = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
    const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
    return driver == 0 ? "there is no driver"
                       : "its driver is for CUDA " + text(driver) + ", this build for CUDA " + text(runtime);
  }
  return error != cudaSuccess ? cudaGetErrorString(error) : products_problem();
}

std::string code_problem() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, any_kernel());
  if (error == cudaSuccess) { return ""; }
  cudaGetLastError();
  const Capability gpu;
  return "its compute capability is " + gpu.text() + ", for which this build has no code (" +
         cudaGetErrorString(error) + "); configure with " + gpu.option();
}

std::string code_note() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, any_kernel()) != cudaSuccess) { return ""; }
  if (attributes.binaryVersion == attributes.ptxVersion) { return ""; }
  const Capability gpu;
  return "the driver compiles the kernels for compute capability " + gpu.text() +
         " when they are first used, which takes minutes once; configure with " + gpu.option();
}

std::string device_problem() {
  static const std::string problem = find_device_problem();  // the first question starts the driver: a second or more
  return problem;
}

int device_count() {
  int count = 0;
  if (!device_problem().empty()) { return 0; }
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

namespace {

/// As nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    const bool is_first = i == 0 || (i >= 4 && i <= 10 && i % 2 == 0);
    text += fmt::format("{}{:02x}", is_first ? "-" : "", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

DeviceInfo device_info() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, thread_device().index), "cudaGetDeviceProperties");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {.name = properties.name,
          .total_bytes = static_cast<int64_t>(total),
          .free_bytes = static_cast<int64_t>(free),
          .multiprocessors = properties.multiProcessorCount,
          .capability = properties.major * 10 + properties.minor,
          .uuid = uuid_text(properties.uuid)};
}

int multiprocessors() { return attribute(cudaDevAttrMultiProcessorCount); }
int64_t shared_bytes() { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

void use_device(int index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw ConfigError("--device", fmt::format("cuda:{}", index),
                      fmt::format("one of the {} devices of this machine", count));
  }
  check(cudaSetDevice(index), "cudaSetDevice");
  if (thread_device().index != index) { thread_device() = {.index = index}; }
}

Stream create_stream() { return {.device = DeviceKind::cuda, .native = make_native_stream().release()}; }

Stream create_side_stream() { return {.device = DeviceKind::cuda, .native = make_native_stream(true).release()}; }

void destroy_stream(Stream& stream) {
  const std::unique_ptr<NativeStream> state(&native(stream));
  stream.native = nullptr;
  cudaStreamSynchronize(state->stream);
  if (state->blas != nullptr) { cublas_lt().Destroy(state->blas); }
  cudaFree(state->workspace);
  cudaStreamDestroy(state->stream);
}

void synchronize(Stream& stream) {
  NativeStream& state = native(stream);
  ++counters().waits;
  check(cudaStreamSynchronize(state.stream), std::string("after the launch of ") + stream.last_kernel);
}

DeviceCounts device_counts() {
  const Counters& c = counters();
  return {.waits = c.waits, .allocations = c.allocations, .uploaded_bytes = c.uploaded_bytes, .graphs = c.graphs};
}

void* native_stream(Stream& stream) { return native(stream).stream; }

StreamScratch stream_scratch(Stream& stream) {
  HEBB_ASSERT(native(stream).workspace != nullptr);
  return {native(stream).workspace, kWorkspaceBytes};
}

Event::Event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  native_ = event;
}

Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(native_)); }

void Event::record(Stream& stream) {
  const NativeStream& state = native(stream);
  const unsigned flags = state.recording != nullptr ? cudaEventRecordExternal : cudaEventRecordDefault;
  check(cudaEventRecordWithFlags(static_cast<cudaEvent_t>(native_), state.stream, flags), "cudaEventRecord");
}

void Event::make_wait(Stream& stream) {
  const NativeStream& state = native(stream);
  const unsigned flags = state.recording != nullptr ? cudaEventWaitExternal : cudaEventWaitDefault;
  check(cudaStreamWaitEvent(state.stream, static_cast<cudaEvent_t>(native_), flags), "cudaStreamWaitEvent");
}

void Event::synchronize() {
  ++counters().waits;
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(native_)), "cudaEventSynchronize");
}

bool Event::has_happened() const {
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(native_));
  if (error == cudaErrorNotReady) {
    cudaGetLastError();  // an answer, not a failure
    return false;
  }
  check(error, "cudaEventQuery");
  return true;
}

float Event::elapsed_ms(const Event& begin, const Event& end) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(begin.native_), static_cast<cudaEvent_t>(end.native_)),
        "cudaEventElapsedTime");
  return ms;
}

struct Graph::State {
  explicit State(int64_t upload_bytes) : uploads(upload_bytes) {}
  ~State() {
    if (executable != nullptr) {
      cudaDeviceSynchronize();  // launches that are under way read `uploads`
      cudaGraphExecDestroy(executable);
    }
  }
  GraphUploads uploads;
  cudaGraphExec_t executable = nullptr;
};

Graph::Graph(Stream& stream, int64_t upload_bytes, const std::function<void()>& work)
    : state_(std::make_unique<State>(upload_bytes)) {
  NativeStream& state = native(stream);
  HEBB_ASSERT(state.recording == nullptr);
  check(cudaStreamBeginCapture(state.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  const std::exception_ptr failure = state_->uploads.collect(state.recording, work);
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(state.stream, &graph);  // ends it also where it has failed
  if (failure == nullptr && error == cudaSuccess) {
    error = cudaGraphInstantiateWithFlags(&state_->executable, graph, 0);
  }
  if (graph != nullptr) { cudaGraphDestroy(graph); }
  if (failure != nullptr) {
    cudaGetLastError();
    std::rethrow_exception(failure);
  }
  check(error, std::string("recording of a graph, after ") + stream.last_kernel);
}

Graph::~Graph() = default;

bool is_recording(Stream& stream) { return native(stream).recording != nullptr; }

void Graph::launch(Stream& stream) {
  ++counters().graphs;
  stream.last_kernel = "a recorded graph";  // no kernel of the recording: any of them may fail
  check(cudaGraphLaunch(state_->executable, native(stream).stream), "cudaGraphLaunch");
}

void* allocate_segment(int64_t bytes) {
  ++counters().allocations;
  void* address = nullptr;
  const cudaError_t error = cudaMalloc(&address, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(error, "cudaMalloc");
  return address;
}

void free_segment(void* address) { cudaFree(address); }

void fill_bytes(void* address, int value, int64_t bytes) {
  // Streams of this program do not wait for the default stream, nor it for them.
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemset(address, value, static_cast<size_t>(bytes)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void* allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, static_cast<size_t>(bytes)), "cudaMallocHost");
  return memory;
}

void free_pinned(void* memory) { cudaFreeHost(memory); }

void upload_bytes(Stream& stream, void* to, const void* from, int64_t bytes) {
  NativeStream& state = native(stream);
  counters().uploaded_bytes += (bytes + kUploadAlign - 1) / kUploadAlign * kUploadAlign;
  void* const place = state.recording != nullptr ? state.recording->place(bytes) : state.ring.place(stream, bytes);
  if (place != nullptr) { std::memcpy(place, from, static_cast<size_t>(bytes)); }
  check(cudaMemcpyAsync(to, place != nullptr ? place : from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                        state.stream),
        "cudaMemcpyAsync");
  if (place == nullptr) { synchronize(stream); }
}

void download(Stream& stream, const std::vector<HostCopy>& copies) {
  NativeStream& state = native(stream);
  int64_t bytes = 0;
  for (const HostCopy& c : copies) { bytes += c.device.bytes(); }
  // One place for all: a place of its own for each could be taken again by a later one before the host has read it.
  char* const place = static_cast<char*>(state.ring.place(stream, bytes));
  char* next = place;
  for (const HostCopy& c : copies) {
    check(cudaMemcpyAsync(place != nullptr ? next : c.host, c.device.data, static_cast<size_t>(c.device.bytes()),
                          cudaMemcpyDeviceToHost, state.stream),
          "cudaMemcpyAsync");
    next += place != nullptr ? c.device.bytes() : 0;
  }
  synchronize(stream);
  next = place;
  for (const HostCopy& c : copies) {
    if (place != nullptr) {
      std::memcpy(c.host, next, static_cast<size_t>(c.device.bytes()));
      next += c.device.bytes();
    }
  }
}

void move_bytes(Stream& stream, void* to, const void* from, int64_t bytes) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, native(stream).stream),
        "cudaMemcpyAsync");
}

void zero_bytes(Stream& stream, void* to, int64_t bytes) {
  check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), native(stream).stream), "cudaMemsetAsync");
}

void check_launch(int error, const char* kernel) {
  check(static_cast<cudaError_t>(error), [&] { return std::string("launch of ") + kernel; });
}

// Without asking a block has 48 KB less its static shared memory, so that every kernel with any asks. What is permitted
// only grows, whatever thread asks: a recorded graph may hold a launch with more than the latest one needs. Each launch
// asks here, and mostly what its thread knows is enough.
void allow_shared_bytes(const void* kernel, int64_t bytes) {
  int64_t& known = thread_device().permitted[kernel];
  if (bytes <= known) { return; }
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, int64_t> permitted;  // of kernels on devices
  const std::lock_guard lock(mutex);
  int64_t& most = permitted[{thread_device().index, kernel}];
  if (bytes <= most) {
    known = most;
    return;
  }
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, kernel);
  const int64_t all = bytes + static_cast<int64_t>(attributes.sharedSizeBytes);
  if (error == cudaErrorInvalidValue && all > shared_bytes()) {
    cudaGetLastError();
    throw MemoryError("GPU", fmt::format("a kernel needs {} KB of shared memory a block, this GPU has {} KB "
                                         "(docs/architecture.md says what hebb's kernels need)",
                                         all / 1024, shared_bytes() / 1024));
  }
  check(error, "shared memory of a kernel");
  known = most = bytes;
}

}  // namespace hebb::HEBB_DEVICE
