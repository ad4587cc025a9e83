#include "comm/bucket_queue.h"

#include "tests/test.h"

namespace {

/// Three buckets of 1 MiB: parameters 3 and 2 in the first, 1 from the first to the third, 0 in the third.
struct Fixture {
  static constexpr int64_t kMiB = int64_t{1} << 18;
  BucketLayout layout{{kMiB / 4, kMiB * 3 / 2 + 64, kMiB / 4, kMiB / 2}, 1, 1};
  Stream stream;
  std::vector<int64_t> sent, gathered;
  BucketQueue queue{layout, stream,
                    [this](Stream& on, int64_t bucket) {
                      CHECK(on.device == DeviceKind::cpu);
                      sent.push_back(bucket);
                    },
                    [this](Stream&, int64_t bucket) { gathered.push_back(bucket); }};
};

using Buckets = std::vector<int64_t>;

}  // namespace

TEST_CASE_METHOD(Fixture, "a bucket is sent when its last parameter is final, in flat order", "[fast]") {
  REQUIRE(layout.buckets() == 3);
  REQUIRE(layout.parameters_of(0) == std::vector<int>{3, 2, 1});
  REQUIRE(layout.parameters_of(2) == std::vector<int>{1, 0});
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    sent.clear();
    queue.parameter_is_final(stream, 3);
    queue.parameter_is_final(stream, 0);  // of the third bucket, which waits for the first
    CHECK(sent.empty());
    queue.parameter_is_final(stream, 1);
    CHECK(sent.empty());
    CHECK(queue.ready() == 0);
    queue.parameter_is_final(stream, 2);
    CHECK(sent == Buckets{0, 1, 2});
    CHECK(queue.ready() == 3);
    queue.finish(stream);
    CHECK(sent == Buckets{0, 1, 2});
  }
}

TEST_CASE_METHOD(Fixture, "what a pass does not finish is sent at the end", "[fast]") {
  queue.finish(stream);  // a step without a pass
  CHECK(sent == Buckets{0, 1, 2});
  sent.clear();
  for (const int p : {3, 2, 1}) { queue.parameter_is_final(stream, p); }
  CHECK(sent == Buckets{0, 1});
  queue.finish(stream);
  CHECK(sent == Buckets{0, 1, 2});
}

TEST_CASE_METHOD(Fixture, "a graph says how many buckets are ready", "[fast]") {
  for (const int64_t ready : {0, 2, 3}) {
    CAPTURE(ready);
    sent.clear();
    queue.graph_is_launched(ready);
    CHECK(static_cast<int64_t>(sent.size()) == ready);
    queue.finish(stream);
    CHECK(sent == Buckets{0, 1, 2});
  }
}

TEST_CASE_METHOD(Fixture, "on the CPU values are gathered when they are needed, the last bucket first", "[fast]") {
  queue.need_values(stream, 0);
  CHECK(gathered.empty());  // nothing has changed
  for (int step = 0; step < 2; ++step) {
    CAPTURE(step);
    gathered.clear();
    queue.begin_values(stream);
    CHECK(gathered.empty());
    for (int again = 0; again < 2; ++again) {
      queue.need_values(stream, 2);
      CHECK(gathered == Buckets{2});
    }
    queue.need_values(stream, 0);
    CHECK(gathered == Buckets{2, 1, 0});
    queue.need_values(stream, 1);
    CHECK(gathered.size() == 3);
  }
  CHECK(sent.empty());
}
