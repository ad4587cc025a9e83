// What the CUDA device says of GPUs, drivers and faults.
#include <thread>

#include "core/cuda_check.h"
#include "core/cuda_code.h"
#include "core/device_timer.h"
#include "tests/cuda_host/fake_runtime.h"
#include "tests/test.h"
#include "train/choose_device.h"

namespace {

/// A test case with a runtime of its own and a stream.
struct OnRuntime {
  OnRuntime() { reset(); }
  ~OnRuntime() {
    reset();
    fake_cuda::destroy_stream(stream);
  }
  static void reset() {
    fake_runtime() = {};
    set_own_gpu(0);
    fake_cuda::use_device(0);
    fake_runtime() = {};  // without what use_device has left
  }

  FakeRuntime& runtime = fake_runtime();
  Stream stream = fake_cuda::create_stream();
};

}  // namespace

TEST_CASE_METHOD(OnRuntime, "a GPU that the build has no code for is named with the remedy", "[fast]") {
  CHECK(fake_cuda::code_problem().empty());
  runtime.kernel_error = cudaErrorNoKernelImageForDevice;
  CHECK(
      fake_cuda::code_problem() ==
      "its compute capability is 8.9, for which this build has no code (no kernel image is available for execution on "
      "the device); configure with -DCMAKE_CUDA_ARCHITECTURES=89-real");
}

TEST_CASE_METHOD(OnRuntime, "a driver that is too old is named with both versions", "[fast]") {
  runtime.count_error = cudaErrorInsufficientDriver;
  CHECK(fake_cuda::find_device_problem() == "its driver is for CUDA 12.4, this build for CUDA 13.0");
  runtime.driver = 0;
  CHECK(fake_cuda::find_device_problem() == "there is no driver");
  runtime.count_error = cudaErrorNoDevice;
  CHECK(fake_cuda::find_device_problem() == "no CUDA-capable device is detected");
}

TEST_CASE_METHOD(OnRuntime, "a fault is not laid on the kernel that happened to hear of it", "[fast]") {
  stream.last_kernel = "the_last";
  const std::string remedy =
      ": an illegal memory access was encountered (in this or an earlier kernel; CUDA_LAUNCH_BLOCKING=1 and "
      "train.cuda_graphs=false or --no-cuda-graphs name it)";
  runtime.fault = cudaErrorIllegalAddress;
  CHECK_THROWS_WITH(fake_cuda::synchronize(stream), "cuda: after the launch of the_last" + remedy);
  CHECK_THROWS_WITH(fake_cuda::check_launch(cudaErrorIllegalAddress, "one"), "cuda: launch of one" + remedy);
  CHECK_THROWS_WITH(fake_cuda::check_launch(cudaErrorInvalidConfiguration, "one"), "cuda: launch of one: an error");
}

TEST_CASE_METHOD(OnRuntime, "a fault in a recorded graph is not laid on the kernel that was recorded last", "[fast]") {
  fake_cuda::Graph graph(stream, 0, [&] { stream.last_kernel = "recorded"; });
  graph.launch(stream);
  runtime.fault = cudaErrorIllegalAddress;
  CHECK_THROWS_WITH(fake_cuda::synchronize(stream),
                    Contains("after the launch of a recorded graph: ") &&
                        Contains("train.cuda_graphs=false or --no-cuda-graphs name it"));
  stream.last_kernel = "later";
  CHECK_THROWS_WITH(fake_cuda::synchronize(stream), Contains("after the launch of later: "));
}

TEST_CASE_METHOD(OnRuntime, "a kernel that a GPU has too little shared memory for is told so, its static part counted",
                 "[fast]") {
  runtime.static_shared_bytes = 38016;
  const int kernel = 0;
  fake_cuda::allow_shared_bytes(&kernel, 60000);
  CHECK_THROWS_WITH(fake_cuda::allow_shared_bytes(&kernel, 65536),
                    Contains("needs 101 KB of shared memory a block, this GPU has 99 KB"));
}

TEST_CASE_METHOD(OnRuntime,
                 "a launch asks the driver for shared memory only where no other has had as much on its device",
                 "[fast]") {
  runtime.devices = 2;
  static const int kernel = 0;
  const auto allow = [&](int64_t bytes) { fake_cuda::allow_shared_bytes(&kernel, bytes); };
  const auto on_another_thread = [&](int64_t bytes) { std::thread(allow, bytes).join(); };
  allow(50000);
  CHECK(runtime.shared_calls == 1);
  allow(50000);
  allow(40000);
  on_another_thread(45000);
  CHECK(runtime.shared_calls == 1);
  on_another_thread(60000);
  allow(55000);  // must not take back what the other thread got
  CHECK(runtime.shared_allowed == std::map<int, int>{{0, 60000}});
  CHECK(runtime.shared_calls == 2);
  fake_cuda::use_device(1);
  allow(50000);
  CHECK(runtime.shared_allowed == std::map<int, int>{{0, 60000}, {1, 50000}});
  CHECK(runtime.shared_calls == 3);
}

TEST_CASE_METHOD(OnRuntime, "the host waits for a copy of megabytes only, and recorded work may not wait", "[fast]") {
  std::vector<char> host(4 << 20, 'x'), device(4 << 20);
  const int64_t waits = fake_cuda::device_counts().waits;
  fake_cuda::upload_bytes(stream, device.data(), host.data(), 1 << 20);
  CHECK(fake_cuda::device_counts().waits == waits);
  fake_cuda::upload_bytes(stream, device.data(), host.data(), 4 << 20);
  CHECK(fake_cuda::device_counts().waits == waits + 1);
  CHECK_THROWS_AS(fake_cuda::Graph(stream, 0, [&] { fake_cuda::synchronize(stream); }), Error);
  CHECK_FALSE(runtime.is_capturing);
}

TEST_CASE_METHOD(OnRuntime, "a GPU that the build has PTX for is usable, and the driver's work is named", "[fast]") {
  runtime.major = 12;
  runtime.minor = 0;
  CHECK(fake_cuda::code_note().empty());
  runtime.binary_version = 120;  // made from PTX of 9.0
  CHECK(fake_cuda::code_problem().empty());
  CHECK(fake_cuda::code_note() ==
        "the driver compiles the kernels for compute capability 12.0 when they are first used, which takes minutes "
        "once; configure with -DCMAKE_CUDA_ARCHITECTURES=120-real");
}

TEST_CASE_METHOD(OnRuntime, "work of a GPU is timed between its events, not by the host's clock", "[fast]") {
  DeviceTimer timer;
  timer.start(stream);
  CHECK(timer.stop(stream) == 1);  // what the stand-in says of every two events
}

TEST_CASE_METHOD(OnRuntime, "a rank makes a context on its own GPU alone", "[fast]") {
  runtime.devices = 2;
  set_own_gpu(1);
  CHECK(fake_cuda::find_device_problem().empty());
  CHECK(choose_compute("auto", "", "train").device == DeviceKind::cuda);
  CHECK(gpu_note().empty());
  fake_cuda::device_info();
  fake_cuda::shared_bytes();
  fake_cuda::synchronize(stream);
  fake_cuda::destroy_stream(stream);
  CHECK(runtime.contexts == std::set<int>{1});
  set_own_gpu(2);
  CHECK_THROWS_WITH(choose_compute("auto", "", "train"), Contains("found cuda:2, expected one of the 2 devices"));
}

TEST_CASE_METHOD(OnRuntime, "a process that sees one GPU takes that one, whatever its local rank", "[fast]") {
  set_own_gpu(3);
  CHECK(choose_compute("cuda", "", "train").device == DeviceKind::cuda);
  CHECK(runtime.contexts == std::set<int>{0});
}

TEST_CASE_METHOD(OnRuntime, "a process that starts ranks makes no context", "[fast]") {
  runtime.devices = 2;
  set_own_gpu(std::nullopt);
  CHECK(fake_cuda::find_device_problem().empty());  // which device_problem() remembers
  CHECK(choose_compute("auto", "", "train").device == DeviceKind::cuda);
  CHECK(fake_cuda::device_count() == 2);
  fake_cuda::shared_bytes();
  CHECK(runtime.contexts.empty());
}

TEST_CASE_METHOD(OnRuntime, "auto takes the CPU and says why, cuda refuses, and cpu does not ask the driver",
                 "[fast]") {
  runtime.kernel_error = cudaErrorNoKernelImageForDevice;
  CHECK(choose_compute("cpu", "", "train").device == DeviceKind::cpu);
  CHECK(runtime.questions == 0);
  CHECK(choose_compute("auto", "", "train").device == DeviceKind::cpu);
  const std::string why =
      " on a machine without a usable GPU (its compute capability is 8.9, for which this build has no code (no kernel "
      "image is available for execution on the device); configure with -DCMAKE_CUDA_ARCHITECTURES=89-real)";
  CHECK_THROWS_WITH(choose_compute("cuda", "", "train"), Contains("train.device: found \"cuda\"" + why));
  CHECK(choose_compute("auto", "bf16", "train").device == DeviceKind::cpu);
}
