// What hebb asks of cuBLASLt.
#include "kernels/gemm/gemm.h"

#include "core/cuda_check.h"
#include "tests/cuda_host/fake_cublaslt.h"
#include "tests/test.h"

namespace hebb::fake_cuda {
void run(Stream& stream, const Gemm& g);
}

namespace {

/// Products of tensors that nobody reads, each of its own m: plans are kept for the life of the process.
class Products {
 public:
  Products() { fake() = {}; }
  ~Products() { fake_cuda::destroy_stream(stream_); }
  void run(int64_t m, DType in, DType out) {
    fake_cuda::run(stream_, Gemm{.c = {memory_, out, {m, 8}},
                                 .a = {memory_, in, {m, 8}},
                                 .b = {memory_, in, {8, 8}},
                                 .m = m,
                                 .n = 8,
                                 .k = 8});
  }
  Stream& stream() { return stream_; }

 private:
  Stream stream_ = fake_cuda::create_stream();
  alignas(64) char memory_[64] = {};
};

constexpr uint32_t kInPlace = CUBLASLT_REDUCTION_SCHEME_INPLACE, kSums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

}  // namespace

TEST_CASE("cuBLASLt is loaded from the file that the build found", "[fast]") {
  CHECK(fake_cuda::products_problem().empty());
  CHECK(fake_cuda::products_library() == "cuBLASLt 13.2.4, " HEBB_CUBLASLT_FILE);
}

TEST_CASE("split products are added in fp32, in place where C is fp32", "[fast]") {
  Products products;
  products.run(101, DType::f32, DType::f32);
  products.run(101, DType::bf16, DType::f32);
  products.run(101, DType::bf16, DType::bf16);
  products.run(101, DType::bf16, DType::bf16);  // its plan is there
  REQUIRE(fake().queries.size() == 3);
  CHECK(fake().most == std::vector<int>{1, 1, 1});
  CHECK(fake().products == 4);
  CHECK(fake().queries[0].schemes == (kInPlace | kSums));
  CHECK(fake().queries[1].schemes == (kInPlace | kSums));
  CHECK(fake().queries[2].schemes == kSums);
  for (const FakeCublasLt::Query& query : fake().queries) {
    CHECK(query.workspace_bytes == uint64_t{32} << 20);
    CHECK(query.alignment[0] == 16);
    CHECK(query.wants_fp32_sums);
  }
}

TEST_CASE("a shape without an algorithm is asked for once more with everything allowed", "[fast]") {
  Products products;
  fake().finds_only_for = CUBLASLT_REDUCTION_SCHEME_MASK;
  products.run(102, DType::bf16, DType::bf16);
  REQUIRE(fake().queries.size() == 2);
  CHECK(fake().queries[1].schemes == CUBLASLT_REDUCTION_SCHEME_MASK);
  for (const uint32_t alignment : fake().queries[1].alignment) { CHECK(alignment == 2); }
  fake().finds_nothing = true;
  CHECK_THROWS_WITH(products.run(103, DType::bf16, DType::bf16),
                    "cublasLt 130204: no algorithm for a product of 103 x 8 x 8");
  fake().finds_nothing = false;  // a failure is not remembered
  CHECK_NOTHROW(products.run(103, DType::bf16, DType::bf16));
}

TEST_CASE("a new shape in recorded work is an error that names it", "[fast]") {
  Products products;
  products.run(104, DType::f32, DType::f32);
  CHECK_NOTHROW(fake_cuda::Graph(products.stream(), 0, [&] { products.run(104, DType::f32, DType::f32); }));
  const size_t queries = fake().queries.size();
  CHECK_THROWS_WITH(fake_cuda::Graph(products.stream(), 0, [&] { products.run(105, DType::f32, DType::f32); }),
                    "cublasLt: a product of 105 x 8 x 8 was not enqueued before its graph was recorded");
  CHECK(fake().queries.size() == queries);
}
