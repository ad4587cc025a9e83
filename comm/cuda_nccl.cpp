#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>

#include "comm/nccl_communicator.h"
#include "core/cuda_device.h"
#include "core/error.h"
#include "core/shared_library.h"

// The part of NCCL's binary interface that hebb uses, as version 2.19 has it; later versions keep it.
namespace hebb {
namespace {

using Comm = struct NcclComm*;
using CudaStream = void*;
enum Result : int { kSuccess = 0, kInProgress = 7 };
enum DataType : int { kUint8 = 1, kInt64 = 4 };
enum Operation : int { kSum = 0, kMax = 2 };
constexpr int kOldest = 21900, kOldestConfig = 21400;

/// The first fields of ncclConfig_t, as version 2.14 has them: NCCL reads as many as `size` says.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestConfig;
  int blocking = 0;
};

struct Library {
  Result (*GetVersion)(int*);
  Result (*GetUniqueId)(NcclId*);
  Result (*CommInitRankConfig)(Comm*, int, NcclId, int, Config*);
  Result (*CommGetAsyncError)(Comm, Result*);
  Result (*CommAbort)(Comm);
  const char* (*GetErrorString)(Result);
  const char* (*GetLastError)(Comm);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  Result (*Send)(const void*, size_t, DataType, int, Comm, CudaStream);
  Result (*Recv)(void*, size_t, DataType, int, Comm, CudaStream);
  Result (*AllGather)(const void*, void*, size_t, DataType, Comm, CudaStream);
  Result (*Broadcast)(const void*, void*, size_t, DataType, int, Comm, CudaStream);
  Result (*AllReduce)(const void*, void*, size_t, DataType, Operation, Comm, CudaStream);
  int version = 0;
};

template <class F> void find(const SharedLibrary& library, const char* name, F*& function) {
  if (!library.find(name, function)) { throw CommError("nccl", library.path() + " has no " + name); }
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Library load() {
  const SharedLibrary library({"libnccl.so.2"});
  if (!library.problem().empty()) {
    throw CommError(
        "nccl",
        library.problem() + "; install the package libnccl2 or nvidia-nccl, and name its folder in LD_LIBRARY_PATH");
  }
  Library l{};
  find(library, "ncclGetVersion", l.GetVersion);
  if (l.GetVersion(&l.version) != kSuccess || l.version < kOldest) {
    throw CommError("nccl",
                    "too old (found " + version_text(l.version) + ", expected at least " + version_text(kOldest) + ")");
  }
  find(library, "ncclGetUniqueId", l.GetUniqueId);
  find(library, "ncclCommInitRankConfig", l.CommInitRankConfig);
  find(library, "ncclCommGetAsyncError", l.CommGetAsyncError);
  find(library, "ncclCommAbort", l.CommAbort);
  find(library, "ncclGetErrorString", l.GetErrorString);
  find(library, "ncclGetLastError", l.GetLastError);
  find(library, "ncclGroupStart", l.GroupStart);
  find(library, "ncclGroupEnd", l.GroupEnd);
  find(library, "ncclSend", l.Send);
  find(library, "ncclRecv", l.Recv);
  find(library, "ncclAllGather", l.AllGather);
  find(library, "ncclBroadcast", l.Broadcast);
  find(library, "ncclAllReduce", l.AllReduce);
  return l;
}

/// Loaded once; a failure is tried again.
const Library& nccl() {
  static const Library library = load();
  return library;
}

[[noreturn]] void fail(Comm comm, Result result, const char* what) {
  const char* detail = nccl().GetLastError(comm);
  std::string text = nccl().GetErrorString(result);
  if (detail != nullptr && *detail != '\0') { text += std::string("; ") + detail; }
  throw CommError(std::string("nccl: ") + what, text);
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const NcclId& id, int rank, int size, double seconds) : Communicator(rank, size), seconds_(seconds) {
    Config config;
    try {
      settle(nccl().CommInitRankConfig(&comm_, size, id, rank, &config), "start");
      scratch_ = cuda::allocate_segment(sizeof(int64_t));
      if (scratch_ == nullptr) { throw MemoryError("nccl", "no memory on the device for a barrier"); }
    } catch (...) {
      abort();
      throw;
    }
  }
  ~NcclCommunicator() override { abort(); }
  const char* engine() const override { return "nccl"; }

 private:
  /// Frees everything without waiting for other ranks; work that is enqueued must have ended.
  void abort() {
    if (comm_ != nullptr) { nccl().CommAbort(comm_); }
    if (scratch_ != nullptr) { cuda::free_segment(scratch_); }
  }

  /// Waits until the library has taken a call (not until it has happened).
  void settle(Result result, const char* what) {
    using Clock = std::chrono::steady_clock;
    const auto limit = Clock::now() + std::chrono::duration<double>(seconds_);
    while (result == kInProgress) {
      if (Clock::now() > limit) {
        throw CommError(std::string("nccl: ") + what,
                        "not all ranks came within " + std::to_string(static_cast<int64_t>(seconds_)) + " s");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      const Result asked = nccl().CommGetAsyncError(comm_, &result);
      if (asked != kSuccess) { result = asked; }
    }
    if (result != kSuccess) { fail(comm_, result, what); }
  }

  static CudaStream native(Stream& stream) {
    HEBB_ASSERT(stream.device == DeviceKind::cuda);
    return cuda::native_stream(stream);
  }

  void do_exchange(Stream& stream, std::span<const Piece> pieces) override {
    const CudaStream on = native(stream);
    const Piece& own = pieces[static_cast<size_t>(rank())];
    copy_bytes(stream, own.receive, own.send, own.send_bytes);
    settle(nccl().GroupStart(), "exchange");
    Result result = kSuccess;
    const auto note = [&](Result r) {
      if (r != kSuccess && r != kInProgress) { result = r; }
    };
    for (int p = 0; p < size(); ++p) {
      const Piece& piece = pieces[static_cast<size_t>(p)];
      if (p == rank()) { continue; }
      if (piece.send_bytes > 0) {
        note(nccl().Send(piece.send, static_cast<size_t>(piece.send_bytes), kUint8, p, comm_, on));
      }
      if (piece.receive_bytes > 0) {
        note(nccl().Recv(piece.receive, static_cast<size_t>(piece.receive_bytes), kUint8, p, comm_, on));
      }
    }
    const Result ended = nccl().GroupEnd();
    settle(result != kSuccess ? result : ended, "exchange");
  }

  /// Parts of unequal length: a broadcast of each, all at once.
  void do_gather(Stream& stream, void* receive, std::span<const int64_t> bytes, const void* send) override {
    const CudaStream on = native(stream);
    if (std::adjacent_find(bytes.begin(), bytes.end(), std::not_equal_to<>()) == bytes.end()) {
      settle(nccl().AllGather(send, receive, static_cast<size_t>(bytes[0]), kUint8, comm_, on), "gather");
      return;
    }
    settle(nccl().GroupStart(), "gather");
    Result result = kSuccess;
    char* to = static_cast<char*>(receive);
    for (int p = 0; p < size(); ++p) {
      const auto part = static_cast<size_t>(bytes[static_cast<size_t>(p)]);
      const Result r = part > 0 ? nccl().Broadcast(p == rank() ? send : to, to, part, kUint8, p, comm_, on) : kSuccess;
      if (r != kSuccess && r != kInProgress) { result = r; }
      to += part;
    }
    const Result ended = nccl().GroupEnd();
    settle(result != kSuccess ? result : ended, "gather");
  }
  void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override {
    settle(nccl().Broadcast(data, data, static_cast<size_t>(bytes), kUint8, root, comm_, native(stream)), "broadcast");
  }
  void do_sum(Stream& stream, int64_t* values, int64_t count) override {
    settle(nccl().AllReduce(values, values, static_cast<size_t>(count), kInt64, kSum, comm_, native(stream)), "sum");
  }
  void do_any(Stream& stream, uint8_t* flags, int64_t count) override {
    settle(nccl().AllReduce(flags, flags, static_cast<size_t>(count), kUint8, kMax, comm_, native(stream)), "any");
  }
  /// On the device: later work of the stream waits for all ranks.
  void do_barrier(Stream& stream) override {
    fill_zero(stream, {scratch_, DType::i64, {1}});
    settle(nccl().AllReduce(scratch_, scratch_, 1, kInt64, kSum, comm_, native(stream)), "barrier");
  }

  double seconds_;
  Comm comm_ = nullptr;
  void* scratch_ = nullptr;
};

}  // namespace

NcclId make_nccl_id() {
  NcclId id;
  const Result result = nccl().GetUniqueId(&id);
  if (result != kSuccess) { fail(nullptr, result, "id"); }
  return id;
}

std::string nccl_version() { return version_text(nccl().version); }

std::unique_ptr<Communicator> make_nccl_communicator(const NcclId& id, int rank, int size, double seconds) {
  return std::make_unique<NcclCommunicator>(id, rank, size, seconds);
}

}  // namespace hebb
