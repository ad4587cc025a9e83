// Without a GPU: the library is loaded, makes ids, and its errors are named.
#ifdef HEBB_HAVE_NCCL
#include "comm/nccl_communicator.h"
#include "core/cuda_device.h"
#include "tests/test.h"

TEST_CASE("NCCL is loaded at run time, or its absence is named", "[fast]") {
  std::string version;
  try {
    version = nccl_version();
  } catch (const CommError& error) {
    CHECK_THAT(std::string(error.what()), Catch::Contains("libnccl.so.2") || Catch::Contains("too old"));
    return;
  }
  CHECK_THAT(version, Catch::StartsWith("2."));
  if (cuda::device_count() == 0) {
    CHECK_THROWS_AS(make_nccl_communicator(NcclId{}, 0, 1, 5), CommError);
    return;
  }
  const auto comm = make_nccl_communicator(make_nccl_id(), 0, 1, 60);
  Stream stream{DeviceKind::cuda};
  void* memory = cuda::allocate_segment(2 * sizeof(int64_t));
  const Tensor all{memory, DType::i64, {2}};
  const std::vector<int64_t> values{7, 0};
  copy_to_device(stream, all, values.data());
  comm->sum(stream, all.slice(0, {1}));
  comm->all_to_all(stream, all.slice(1, {1}), all.slice(0, {1}));
  comm->barrier(stream);
  std::vector<int64_t> found(2);
  copy_to_host(stream, found.data(), all);
  CHECK(found == std::vector<int64_t>{7, 7});
  cuda::free_segment(memory);
}
#endif
