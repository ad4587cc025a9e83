// The list of matrix products that are measured, and the file that keeps the choices. tests/cuda_host measures.
#include "train/autotune.h"

#include "tests/train/run_fixture.h"

FOLDER_TEST("the dry run of a micro-batch lists the matrix products of training, each once", "[fast]") {
  const RunConfig config = test_run(folder);  // 18 tokens a micro-batch, 12 channels, 29 tokens in the vocabulary
  ProductList list;
  const MemoryPlan plan = plan_memory(config, {}, &list);
  const auto has = [&](int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
    return std::count_if(list.products().begin(), list.products().end(), [&](const auto& product) {
      const ProductKey& p = product.first;
      return p.m == m && p.n == n && p.k == k && p.trans_a == trans_a && p.trans_b == trans_b && p.out == DType::f64;
    });
  };
  CHECK(has(18, 12, 12, false, true) == 1);   // the mixers of both blocks
  CHECK(has(18, 12, 12, false, false) == 1);  // the gradients of their inputs
  CHECK(has(12, 12, 18, true, false) == 1);   // and of their weights
  CHECK(has(18, 29, 12, false, true) == 1);   // logits
  for (const auto& [key, accumulate] : list.products()) {
    CHECK(key.align_a == 16);
    CHECK_FALSE(key.tf32);
  }
  CHECK(plan.total_bytes() == plan_memory(config).total_bytes());
}

TEST_CASE("products differ by sizes, types, alignment and rounding, and empty ones do not count", "[fast]") {
  alignas(64) char memory[64];
  const auto product = [&](int64_t m) {
    return Gemm{.c = {memory, DType::f32, {m, 8}},
                .a = {memory, DType::f32, {m, 8}},
                .b = {memory, DType::f32, {8, 8}},
                .m = m,
                .n = 8,
                .k = 8};
  };
  ProductList list;
  const auto is_new = [&](const Gemm& g, bool allows_tf32 = false) {
    const size_t before = list.products().size();
    Stream stream{.allows_tf32 = allows_tf32};
    list.add(stream, g);
    return list.products().size() > before;
  };
  CHECK(is_new(product(4)));
  CHECK_FALSE(is_new(product(4)));
  CHECK_FALSE(is_new(product(0)));
  CHECK(is_new(product(5)));
  CHECK(is_new(product(4), true));
  Gemm other = product(4);
  other.accumulate = true;
  CHECK_FALSE(is_new(other));
  other.tf32 = true;
  CHECK_FALSE(is_new(other));  // as with a stream that allows it
  other = product(4);
  other.c.data = memory + 4;
  CHECK(is_new(other));
  other.c.data = memory + 32;
  CHECK_FALSE(is_new(other));
  other = product(4);
  other.ldc = 16;
  CHECK(is_new(other));
  other = product(4);
  other.a.dtype = other.b.dtype = DType::bf16;
  CHECK(is_new(other));
  CHECK_FALSE(is_new(other, true));  // bf16 is not rounded to TF32
}

TEST_CASE("measured choices are read as they were written", "[fast]") {
  TunedProducts tuned{.device = "NVIDIA H200", .capability = 90, .cublaslt = 130204, .products = {}};
  TunedProduct product{.product = {.m = 3,
                                   .n = 4,
                                   .k = 5,
                                   .ldc = 6,
                                   .lda = 7,
                                   .ldb = 8,
                                   .trans_a = true,
                                   .out = DType::f32,
                                   .in = DType::bf16,
                                   .align_c = 4,
                                   .align_b = 2},
                       .first_us = 12.5,
                       .us = 10.25};
  for (uint64_t i = 0; i < 8; ++i) { product.algorithm[i] = ~i; }
  tuned.products = {product, TunedProduct{.product = {.m = 1, .n = 1, .k = 1, .ldc = 1, .lda = 1, .ldb = 1}}};
  const std::string text = to_text(tuned);
  const TunedProducts read = tuned_products(text, "autotune.json");
  CHECK(read.device == tuned.device);
  CHECK(read.capability == 90);
  CHECK(read.cublaslt == 130204);
  REQUIRE(read.products.size() == 2);
  CHECK(read.products[0].product == product.product);
  CHECK(read.products[0].algorithm == product.algorithm);
  CHECK(read.products[0].is_faster());
  CHECK_FALSE(read.products[1].is_faster());
  CHECK(to_text(read) == text);
}

TEST_CASE("the documented file of measured choices is one", "[fast]") {
  const std::string page = read_file(fs::path(HEBB_SOURCE) / "docs/formats/checkpoint.md");
  const size_t begin = page.find("```json\n", page.find("## autotune.json")) + 8;
  const TunedProducts tuned = tuned_products(page.substr(begin, page.find("```", begin) - begin), "checkpoint.md");
  CHECK(tuned.device == "NVIDIA H200");
  REQUIRE(tuned.products.size() == 1);
  CHECK(tuned.products[0].algorithm[0] == 0x42);
}

TEST_CASE("a file of measured choices that is damaged says where", "[fast]") {
  CHECK_THROWS_WITH(tuned_products("{", "RUN/autotune.json"), Contains("RUN/autotune.json:1:2"));
  CHECK_THROWS_WITH(tuned_products(R"({"device": "x", "capability": 90, "cublaslt": 1})", "a.json"),
                    Contains("products: found nothing"));
  CHECK_THROWS_WITH(
      tuned_products(R"({"device": "x", "capability": 90, "cublaslt": 1, "products": [], "more": 1})", "a.json"),
      Contains("more: found an unknown key"));
}

TEST_CASE("measuring that takes longer than a second is said once", "[fast]") {
  MeasuringNote note(34);
  CHECK(note.at(3, 0.9).empty());
  CHECK(note.at(5, 1) == "autotune: measuring 34 matrix products, 5 done (train.autotune)");
  CHECK(note.at(6, 30).empty());
}

TEST_CASE("what autotune did is one line", "[fast]") {
  CHECK(TuningReport{.products = 34, .faster = 9, .seconds = 2.06}.text() ==
        "autotune: 34 products, 9 faster than the heuristic's first, 2.1 s");
  CHECK(TuningReport{.products = 34, .kept = 30, .faster = 9, .seconds = 0.4}.text() ==
        "autotune: 34 products (30 measured before), 9 faster than the heuristic's first, 0.4 s");
}

FOLDER_TEST("a run on the CPU measures no products", "[fast]") {
  Heard heard;
  CHECK(run_in(folder / "run", test_run(folder, R"({"train": {"autotune": true}})"), heard) == 0);
  CHECK_FALSE(heard.has("autotune"));
  CHECK_FALSE(fs::exists(folder / "run" / "autotune.json"));
}
