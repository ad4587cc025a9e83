#include "core/launch_graph.h"

#include "tests/test.h"

TEST_CASE("work for the CPU is called every time and never recorded", "[fast]") {
  Stream stream;
  LaunchGraph graph;
  int calls = 0;
  for (int i = 0; i < 4; ++i) {
    graph.run(stream, [&] { ++calls; });
    CHECK(calls == i + 1);
    CHECK_FALSE(graph.is_recorded());
  }
}

TEST_CASE("several tensors are copied to the host at once", "[fast]") {
  Stream stream;
  double from[3] = {1, 2, 3}, to[3] = {};
  int32_t count = 7, copied = 0;
  copy_to_host(stream, {{to, Tensor{from, DType::f64, {3}}},
                        {&copied, Tensor{&count, DType::i32, {1}}},
                        {nullptr, Tensor{from, DType::f64, {0}}}});
  CHECK(to[1] == 2);
  CHECK(copied == 7);
  Stream counting{.device = DeviceKind::count};
  copied = 0;
  copy_to_host(counting, {{&copied, Tensor{&count, DType::i32, {1}}}});
  CHECK(copied == 0);
}
