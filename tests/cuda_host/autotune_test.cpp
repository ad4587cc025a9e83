// Measured choices of cuBLASLt's algorithms, and the file that keeps them.
#include "train/autotune.h"

#include "tests/cuda_host/fake_cublaslt.h"
#include "tests/cuda_host/fake_runtime.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace hebb::fake_cuda {
void run(Stream& stream, const Gemm& g);
}

namespace {

/// A GPU whose library offers algorithms. What a process has chosen stays, so each product has an m of its own.
class Gpu {
 public:
  explicit Gpu(std::vector<FakeCublasLt::Offer> offers) {
    fake() = {};
    fake().offers = std::move(offers);
    fake_runtime() = {};
    fake_runtime().clock_ms = &fake().now_ms;
  }
  ~Gpu() {
    fake() = {};
    fake_runtime() = {};
  }

  Gemm product(int64_t m, bool accumulate = false) {
    return {.c = {memory_.data(), DType::bf16, {m, 8}},
            .a = {memory_.data(), DType::bf16, {m, 8}},
            .b = {memory_.data(), DType::bf16, {8, 8}},
            .m = m,
            .n = 8,
            .k = 8,
            .accumulate = accumulate};
  }
  /// Of products with these m.
  ProductList list(const std::vector<int64_t>& sizes, bool accumulate = false) {
    ProductList products;
    for (const int64_t m : sizes) { products.add(Stream{}, product(m, accumulate)); }
    return products;
  }
  TuningReport tune(const ProductList& products, const fs::path& file = {}) {
    return autotune(products, file, nullptr, [this](const std::string& line) { said.push_back(line); });
  }
  /// The algorithm of a product with this m.
  uint64_t used(int64_t m) {
    Stream stream{.device = DeviceKind::cuda};
    fake_cuda::run(stream, product(m));
    return fake().ran.back();
  }

  std::vector<std::string> said;

 private:
  alignas(64) std::array<char, 1 << 16> memory_{};
};

}  // namespace

FOLDER_TEST("the fastest algorithm with the bits of the first choice is taken", "[fast]") {
  Gpu gpu({{1, 2.0, 'a', 'b'}, {2, 1.5, 'a', 'b'}, {3, 1.0, 'a', 'b'}, {4, 1.25, 'a', 'b'}});
  const TuningReport report = gpu.tune(gpu.list({201, 202}), folder / "autotune.json");
  CHECK(report.products == 2);
  CHECK(report.faster == 2);
  CHECK(report.kept == 0);
  CHECK_THAT(report.text(), Contains("autotune: 2 products, 2 faster than the heuristic's first, "));
  CHECK(gpu.used(201) == 3);
  CHECK(gpu.used(202) == 3);
  CHECK(gpu.used(203) == 1);
  for (const TunedProduct& tuned : tuned_products(read_file(folder / "autotune.json"), "file").products) {
    CHECK(tuned.algorithm[0] == 3);
    CHECK(tuned.first_us == Approx(2000));
    CHECK(tuned.us == Approx(1000));
  }
  CHECK(gpu.said.empty());
}

TEST_CASE("an algorithm with other bits is never taken, however fast", "[fast]") {
  Gpu gpu({{1, 2.0, 'a', 'b'}, {2, 0.1, 'x', 'b'}, {3, 0.2, 'a', 'x'}, {4, 1.9, 'a', 'b'}});
  CHECK(gpu.tune(gpu.list({211}), {}).faster == 1);
  CHECK(gpu.used(211) == 4);
  CHECK(gpu.tune(gpu.list({212}, true)).faster == 1);  // a product that adds to C
  CHECK(gpu.used(212) == 4);
}

TEST_CASE("a gain of noise leaves the first choice", "[fast]") {
  Gpu gpu({{1, 2.0, 'a', 'b'}, {2, 1.99, 'a', 'b'}});
  CHECK(gpu.tune(gpu.list({216})).faster == 0);
  CHECK(gpu.used(216) == 1);
}

TEST_CASE("as many algorithms are measured as a run may take, and the first as a run without asks for it", "[fast]") {
  std::vector<FakeCublasLt::Offer> offers;
  for (uint64_t name = 1; name <= 10; ++name) { offers.push_back({name, 20.0 - static_cast<double>(name), 'a', 'b'}); }
  Gpu gpu(offers);
  gpu.tune(gpu.list({218}));
  CHECK(fake().most == std::vector<int>{1, 8});
  CHECK(gpu.used(218) == 8);
  for (const FakeCublasLt::Query& query : fake().queries) {
    CHECK(query.schemes == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    CHECK(query.alignment[0] == 16);
  }
}

FOLDER_TEST("a later start takes what the file has and measures what is missing", "[fast]") {
  const fs::path file = folder / "autotune.json";
  Gpu gpu({{1, 2.0, 'a', 'b'}, {2, 1.0, 'a', 'b'}});
  gpu.tune(gpu.list({221}), file);
  // As if another process had measured the product, and found a third one.
  std::string text = read_file(file);
  const size_t m = text.find("\"m\": 221"), algorithm = text.find("0000000000000002");
  REQUIRE(m != std::string::npos);
  REQUIRE(algorithm != std::string::npos);
  text.replace(m, 8, "\"m\": 222").replace(algorithm, 16, "0000000000000003");
  write_file_atomic(file, text);
  fake().queries.clear();
  fake().ran.clear();
  const TuningReport report = gpu.tune(gpu.list({222}), file);
  CHECK(report.products == 1);
  CHECK(report.kept == 1);
  CHECK(report.faster == 1);
  CHECK_THAT(report.text(), Contains("autotune: 1 products (1 measured before), 1 faster"));
  CHECK(fake().queries.empty());
  CHECK(fake().ran.empty());
  CHECK(read_file(file) == text);
  CHECK(gpu.used(222) == 3);

  const TuningReport more = gpu.tune(gpu.list({222, 223}), file);
  CHECK(more.products == 2);
  CHECK(more.kept == 1);
  CHECK(fake().queries.size() == 2);  // for the first choice and for all, of one product
  CHECK(gpu.used(223) == 2);
  CHECK(tuned_products(read_file(file), "file").products.size() == 2);
}

FOLDER_TEST("a file of another device or library is replaced, and that is said", "[fast]") {
  const fs::path file = folder / "autotune.json";
  Gpu gpu({{1, 2.0, 'a', 'b'}, {2, 1.0, 'a', 'b'}});
  gpu.tune(gpu.list({231}), file);
  fake_runtime().name = "another GPU";
  const TuningReport report = gpu.tune(gpu.list({231}), file);
  CHECK(report.kept == 0);
  REQUIRE(gpu.said.size() == 1);
  CHECK_THAT(gpu.said[0],
             Contains("autotune.json is of a GPU (compute capability 8.9) with cuBLASLt 130204, not of another GPU"));
  CHECK(tuned_products(read_file(file), "file").device == "another GPU");
  TunedProducts older = tuned_products(read_file(file), "file");
  older.cublaslt = 130000;
  write_file_atomic(file, to_text(older));
  CHECK(gpu.tune(gpu.list({231}), file).kept == 0);
  CHECK(gpu.said.size() == 2);
}

FOLDER_TEST("a damaged file is an error that names it", "[fast]") {
  const fs::path file = folder / "autotune.json";
  Gpu gpu({{1, 2.0, 'a', 'b'}, {2, 1.0, 'a', 'b'}});
  gpu.tune(gpu.list({241}), file);
  const std::string text = read_file(file);
  const auto with = [&](const std::string& damaged) {
    write_file_atomic(file, damaged);
    return gpu.tune(gpu.list({241}), file);
  };
  CHECK_THROWS_WITH(with(text.substr(0, text.size() / 2)),
                    Contains(file.string() + ": the file is damaged (the run measures again without it)"));
  CHECK_THROWS_WITH(with(std::string(text).replace(text.find("0000000000000002"), 1, "x")),
                    Contains("products.0.algorithm") && Contains("expected 128 hexadecimal digits"));
  CHECK_THROWS_AS(with("{}"), CheckpointError);
  fake().refused = 2;
  CHECK_THROWS_WITH(with(text), Contains(file.string() + ": cuBLASLt refuses the algorithm of the product of 241 x 8"));
}

TEST_CASE("a product for which there is no memory keeps the first choice, and that is said", "[fast]") {
  Gpu gpu({{1, 2.0, 'a', 'b'}, {2, 1.0, 'a', 'b'}});
  fake_runtime().memory_bytes = size_t{2} << 20;
  const TuningReport report = gpu.tune(gpu.list({251, 4000}));
  CHECK(report.products == 1);
  CHECK(report.without_memory == 1);
  CHECK(gpu.said ==
        std::vector<std::string>{"autotune: no memory to measure 1 products, which take the heuristic's first choice"});
  CHECK(gpu.used(251) == 2);
}
