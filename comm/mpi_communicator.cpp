#include "comm/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace hebb {
namespace {

// MPI counts in int: what is longer goes in pieces.
constexpr int64_t kPiece = int64_t{1} << 30;

void check(int status, const char* what) {
  if (status == MPI_SUCCESS) { return; }
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw CommError(std::string("mpi: ") + what, std::string(text, static_cast<size_t>(length)));
}

/// MPI_Init .. MPI_Finalize, unless the process has started MPI itself.
class MpiSession {
 public:
  MpiSession() {
    int is_started = 0;
    check(MPI_Initialized(&is_started), "start");
    if (is_started != 0) { return; }
    int given = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given), "start");
    is_ours_ = true;
    if (given < MPI_THREAD_FUNNELED) { throw CommError("mpi: start", "this MPI does not allow programs with threads"); }
  }
  ~MpiSession() {
    if (is_ours_) { MPI_Finalize(); }
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  bool is_ours_ = false;
};

int world_rank() {
  int rank = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "rank");
  return rank;
}
int world_size() {
  int size = 1;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "size");
  return size;
}

/// A communicator of its own, so that its messages never meet those of others; the session lives longer.
class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::unique_ptr<MpiSession> session)
      : Communicator(world_rank(), world_size()), session_(std::move(session)) {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "communicator");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "errors");
  }
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }
  const char* engine() const override { return "mpi"; }

 private:
  static void on_host(const Stream& stream) { HEBB_ASSERT(stream.device == DeviceKind::cpu); }

  void do_exchange(Stream& stream, std::span<const Piece> pieces) override {
    on_host(stream);
    std::vector<MPI_Request> open;
    const auto in_pieces = [&](int64_t bytes, auto&& start) {
      for (int64_t at = 0; at < bytes; at += kPiece) {
        open.push_back(MPI_REQUEST_NULL);
        check(start(at, static_cast<int>(std::min(kPiece, bytes - at)), &open.back()), "exchange");
      }
    };
    // Each rank begins with its right neighbour, so that not all send to one.
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() + size() - step) % size(), to = (rank() + step) % size();
      const Piece &in = pieces[static_cast<size_t>(from)], &out = pieces[static_cast<size_t>(to)];
      in_pieces(in.receive_bytes, [&](int64_t at, int count, MPI_Request* request) {
        return MPI_Irecv(static_cast<char*>(in.receive) + at, count, MPI_BYTE, from, 0, comm_, request);
      });
      in_pieces(out.send_bytes, [&](int64_t at, int count, MPI_Request* request) {
        return MPI_Isend(static_cast<const char*>(out.send) + at, count, MPI_BYTE, to, 0, comm_, request);
      });
    }
    const Piece& own = pieces[static_cast<size_t>(rank())];
    copy_bytes(stream, own.receive, own.send, own.send_bytes);
    check(MPI_Waitall(static_cast<int>(open.size()), open.data(), MPI_STATUSES_IGNORE), "exchange");
  }

  void do_broadcast(Stream& stream, void* data, int64_t bytes, int root) override {
    on_host(stream);
    for (int64_t at = 0; at < bytes; at += kPiece) {
      const int count = static_cast<int>(std::min(kPiece, bytes - at));
      check(MPI_Bcast(static_cast<char*>(data) + at, count, MPI_BYTE, root, comm_), "broadcast");
    }
  }

  template <class T> void all_reduce(T* values, int64_t count, MPI_Datatype type, MPI_Op op, const char* what) {
    const int64_t piece = kPiece / static_cast<int64_t>(sizeof(T));
    for (int64_t at = 0; at < count; at += piece) {
      const int length = static_cast<int>(std::min(piece, count - at));
      check(MPI_Allreduce(MPI_IN_PLACE, values + at, length, type, op, comm_), what);
    }
  }
  void do_sum(Stream& stream, int64_t* values, int64_t count) override {
    on_host(stream);
    all_reduce(values, count, MPI_INT64_T, MPI_SUM, "sum");
  }
  void do_any(Stream& stream, uint8_t* flags, int64_t count) override {
    on_host(stream);
    all_reduce(flags, count, MPI_UINT8_T, MPI_MAX, "any");
  }
  void do_barrier(Stream& stream) override {
    on_host(stream);
    check(MPI_Barrier(comm_), "barrier");
  }

  std::unique_ptr<MpiSession> session_;
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

void reduce_scatter_by_mpi(float* to, const float* from, int64_t n) {
  const std::vector<int> counts(static_cast<size_t>(world_size()), static_cast<int>(n));
  check(MPI_Reduce_scatter(from, to, counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), "reduce-scatter");
}

std::unique_ptr<Communicator> make_mpi_communicator() {
  auto session = std::make_unique<MpiSession>();
  return std::make_unique<MpiCommunicator>(std::move(session));
}

}  // namespace hebb
