// Work beside a stream: events that a graph records, as comm/bucket_queue.h uses them.
#include "core/cuda_side.h"
#include "support.h"

using namespace hebb_test;

TEST_CASE("an event of a graph happens in each launch, in its place", "[fast]") {
  TestStream stream;
  hebb::Stream side = device::create_side_stream();
  DeviceArray<int> input(std::vector<int>{0}), first(std::vector<int>{-1}), last(std::vector<int>{-1}),
      seen(std::vector<int>{-1});
  device::Event ready, all;
  CHECK_FALSE(device::is_recording(stream));
  {
    device::Graph graph(stream, 0, [&] {
      CHECK(device::is_recording(stream));
      CHECK_FALSE(device::is_recording(side));
      device::move_bytes(stream, first.data(), input.data(), sizeof(int));
      ready.record(stream);
      device::move_bytes(stream, last.data(), input.data(), sizeof(int));
    });
    CHECK_FALSE(device::is_recording(stream));
    for (const int value : {1, 2, 3}) {
      CAPTURE(value);
      device::upload_bytes(stream, input.data(), &value, sizeof(int));
      graph.launch(stream);
      ready.make_wait(side);
      device::move_bytes(side, seen.data(), first.data(), sizeof(int));
      device::synchronize(side);
      CHECK(*seen.data() == value);
      // Late work has not gone further than to the event.
      if (simt::settings().timing == simt::Timing::late) { CHECK(*last.data() == (value == 1 ? -1 : value - 1)); }
      all.record(side);
      all.make_wait(stream);
      device::synchronize(stream);
      CHECK(*last.data() == value);
    }
  }
  device::destroy_stream(side);
}

TEST_CASE("a graph waits for an event as it was recorded last before each launch", "[fast]") {
  TestStream stream;
  hebb::Stream side = device::create_side_stream();
  DeviceArray<int> input(std::vector<int>{0}), sent(std::vector<int>{-1}), before(std::vector<int>{-1}),
      after(std::vector<int>{-1});
  device::Event there;
  there.record(side);
  {
    device::Graph graph(stream, 0, [&] {
      device::move_bytes(stream, before.data(), input.data(), sizeof(int));
      there.make_wait(stream);
      device::move_bytes(stream, after.data(), sent.data(), sizeof(int));
    });
    for (const int value : {1, 2, 3}) {
      CAPTURE(value);
      device::upload_bytes(stream, input.data(), &value, sizeof(int));
      device::synchronize(stream);
      if (value != 2) {  // the second launch finds nothing new
        device::move_bytes(side, sent.data(), input.data(), sizeof(int));
        there.record(side);
      }
      graph.launch(stream);
      device::synchronize(stream);
      CHECK(*before.data() == value);
      CHECK(*after.data() == (value == 2 ? 1 : value));
    }
  }
  device::destroy_stream(side);
}
