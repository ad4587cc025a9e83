#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/stream.h"

// Device code lives in namespace hebb::cuda. The SIMT emulator (docs/emulator.md) compiles the same sources a second
// time, under another name, so that both can be linked into one program.
#ifndef HEBB_DEVICE
#define HEBB_DEVICE cuda
#endif

namespace hebb::HEBB_DEVICE {

struct DeviceInfo {
  std::string name;
  int64_t total_bytes = 0, free_bytes = 0;
  int multiprocessors = 0;
  int capability = 0;  // 90 for sm_90
  std::string uuid{};  // "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"; empty in the emulator
};

/// Number of devices that this process sees; 0 where there is no driver, no device, or no library of matrix products.
/// Takes no memory of any device (core/cuda_code.h says whether this build has code for one).
int device_count();
/// Why device_count() is 0, with the remedy where there is one; empty where there is a device.
std::string device_problem();
/// Why the library of matrix products cannot be used; empty where it can.
std::string products_problem();
/// That library: "cuBLASLt 13.1.0, /usr/local/cuda/lib64/libcublasLt.so.13". Errors: Error where there is none.
std::string products_library();
/// The device that the calling thread uses (the first unless use_device was called).
DeviceInfo device_info();
/// Of the same device; without a question to the driver about memory, so for each launch.
int multiprocessors();
/// Shared memory that a block may have [bytes].
int64_t shared_bytes();
/// From here on the calling thread uses that one. Errors: an index that does not exist.
void use_device(int index);

/// A stream of the calling thread's device, beside the default one that every Stream{DeviceKind::cuda} stands for.
Stream create_stream();
void destroy_stream(Stream& stream);  // one that create_stream() made
/// Waits until everything enqueued has happened. Errors of earlier launches surface here at the latest.
void synchronize(Stream& stream);

/// What this process has done so far: how often the host waited for the device, how often it asked for memory of the
/// device, bytes that it copied there, each copy rounded up to kUploadAlign, and graphs that it launched.
struct DeviceCounts {
  int64_t waits = 0, allocations = 0, uploaded_bytes = 0, graphs = 0;
};
DeviceCounts device_counts();
constexpr int64_t kUploadAlign = 64;
/// cudaStream_t, or simt::Stream* in the emulator.
void* native_stream(Stream& stream);

/// Scratch memory of a stream, allocated once: kernels may use it between their launches, nothing survives a run().
struct StreamScratch {
  void* data;
  int64_t bytes;
};
StreamScratch stream_scratch(Stream& stream);

/// A point in a stream's work.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream& stream);
  void make_wait(Stream& stream);  // later work of the stream happens after this event
  void synchronize();
  bool has_happened() const;
  /// Milliseconds between two recorded events, both of which must have happened.
  static float elapsed_ms(const Event& begin, const Event& end);

 private:
  void* native_ = nullptr;
};

/// Work that was enqueued once and is enqueued again as a whole, with the same arguments: a CUDA graph. It keeps what
/// the work copied from the host.
class Graph {
 public:
  /// Calls `work` and records what it enqueues on `stream`, which must not wait for the device nor ask for its memory;
  /// nothing of it happens yet. upload_bytes: what the work copies from the host, as device_counts() has it. Errors:
  /// those of the work; Error where it did what a recording forbids.
  Graph(Stream& stream, int64_t upload_bytes, const std::function<void()>& work);
  ~Graph();
  void launch(Stream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What the launch template calls: throw what went wrong with the launch; permit a kernel that much dynamic shared
// memory.
void check_launch(int error, const char* kernel);
void allow_shared_bytes(const void* kernel, int64_t bytes);

// What core/stream.cpp and core/arena.cpp call.
void* allocate_segment(int64_t bytes);  // null when the device has no room
void free_segment(void* address);
void fill_bytes(void* address, int value, int64_t bytes);
void upload_bytes(Stream& stream, void* to, const void* from, int64_t bytes);
void download(Stream& stream, const std::vector<HostCopy>& copies);
void move_bytes(Stream& stream, void* to, const void* from, int64_t bytes);
// What core/upload_ring.h calls: host memory that the device reads and writes by itself.
void* allocate_pinned(int64_t bytes);
void free_pinned(void* memory);
void zero_bytes(Stream& stream, void* to, int64_t bytes);
void add_to(Stream& stream, const Tensor& y, const Tensor& x);
void convert(Stream& stream, const Tensor& to, const Tensor& from);
/// A kernel of this build, to ask whether it has code for a device.
const void* any_kernel();

}  // namespace hebb::HEBB_DEVICE
