#include "core/arena.h"

#include "tests/test.h"
#include "tests/thrown.h"

TEST_CASE("the same calls give the same layout on the counting and on the real device", "[fast]") {
  const auto play = [](Arena& arena) {
    std::vector<uintptr_t> addresses;
    const auto get = [&](int64_t bytes) {
      addresses.push_back(reinterpret_cast<uintptr_t>(arena.allocate(bytes, "x")));
      return reinterpret_cast<void*>(addresses.back());
    };
    void* a = get(1000);
    void* b = get(5000);
    get(64);
    arena.release(b);
    void* c = get(4000);
    get(1);
    get(3000);
    arena.release(a);
    arena.release(c);
    get(4900);
    for (size_t i = addresses.size(); i-- > 0;) { addresses[i] -= addresses[0]; }
    return addresses;
  };
  Arena count(DeviceKind::count), real(DeviceKind::cpu);
  const auto planned = play(count);
  real.reserve(count.peak_bytes());
  CHECK(play(real) == planned);
  CHECK(count.peak_bytes() == 1024 + 5056 + 64 + 3008);
  CHECK(count.in_use_bytes() == real.in_use_bytes());
}

TEST_CASE("the arena gives back and merges what is released", "[fast]") {
  Arena arena(DeviceKind::count);
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) { blocks.push_back(arena.allocate(100, "block")); }
  for (const int i : {3, 1, 2, 9, 0, 8, 5, 7, 6, 4}) { arena.release(blocks[static_cast<size_t>(i)]); }
  CHECK(arena.in_use_bytes() == 0);
  CHECK(arena.allocate(10 * 128, "all of it") == blocks[0]);
  CHECK(arena.peak_bytes() == 10 * 128);
}

TEST_CASE("the peak table names what was alive at the peak", "[fast]") {
  Arena arena(DeviceKind::count);
  void* a = arena.allocate(640, "weights");
  void* b = arena.allocate(1280, "activations");
  arena.release(b);
  arena.release(a);
  arena.allocate(64, "later");
  const auto table = arena.peak_table();
  REQUIRE(table.size() == 2);
  CHECK(table[0].name == "activations");
  CHECK(table[0].bytes == 1280);
  CHECK(table[1].name == "weights");
}

TEST_CASE("poisoned memory reads as NaN", "[fast]") {
  Arena arena(DeviceKind::cpu);
  arena.set_poison(true);
  Buffer buffer(arena, {3}, DType::f32, "x");
  CHECK(buffer.tensor().as<float>()[2] != buffer.tensor().as<float>()[2]);
}

TEST_CASE("an impossible reservation is a memory error that names the arena and the bytes", "[fast]") {
  Arena arena(DeviceKind::cpu, "work");
  CHECK_THAT(thrown<MemoryError>([&] { arena.reserve(int64_t{1} << 60); }),
             Catch::Matchers::StartsWith("work: no memory for the reservation of work") &&
                 Catch::Contains(std::to_string(int64_t{1} << 60)));
}
